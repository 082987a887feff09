"""A file is replaced whole or not at all."""

import pytest

from workshop_lib.paths import replacing


def test_the_folder_is_made_and_the_file_replaced(tmp_path):
    path = tmp_path / "made" / "file"
    for text in ("old", "new"):
        with replacing(path) as temporary:
            temporary.write_text(text)
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_alone_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def write_half():
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
