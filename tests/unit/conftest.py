"""What several unit tests share."""

import pytest
from ranks.ladder import write_small_mnist


@pytest.fixture(scope="session")
def small_mnist(tmp_path_factory) -> str:
    """A folder with the first 1,600 training and 502 test images: evaluation on all takes seconds."""
    folder = tmp_path_factory.mktemp("mnist")
    write_small_mnist(folder)
    return str(folder)
