"""The emulated file server of 09: what shared reads take, that the bytes are real, and what the ways differ by."""

import json
import subprocess
import sys

import numpy as np
import pytest
from needs import needs
from our_ranks import on_every_rank

from workshop_lib import emulation
from workshop_lib.paths import SCRIPTS

from lessons.feeding_the_ranks import server, storage, training

pytestmark = pytest.mark.full

ROWS = 132
ROW_BYTES = 28 * 28
SENT_S = server.SCALE / server.BYTES_PER_S  # seconds per real byte


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images in one file, and in a file for each."""
    images = np.random.default_rng(1).integers(0, 256, (ROWS, 28, 28), np.uint8)
    folder = tmp_path_factory.mktemp("feeding")
    server.write_files(folder / "whole", images, ROWS)
    server.write_files(folder / "images", images, 1)
    return folder


def test_a_server_shares_its_time_equally_among_those_that_read():
    assert server.ends_of([(0, 1), (0, 1), (0, 1)]) == [3, 3, 3]
    assert server.ends_of([(0, 2), (1, 2)]) == [3, 4]  # alone for 1 s, then with the other one for 2 s
    assert server.ends_of([(5, 1), (0, 1), (2, 0)]) == [6, 1, 2]
    ends = server.ends_of([(0.1, 0.7), (0.3, 0.2), (0.3, 0.9)])
    assert max(ends) == pytest.approx(0.1 + 0.7 + 0.2 + 0.9) and min(ends) == ends[1] == pytest.approx(0.9)


@on_every_rank
def test_ways_return_the_real_bytes_and_take_what_their_opens_and_bytes_cost(folder):
    comm = emulation.start("h100").comm
    path = folder / "whole" / "0"
    per_rank = ROWS // comm.size * ROW_BYTES
    parts = [(rank * per_rank, per_rank) for rank in range(comm.size)]
    offset, nbytes = parts[comm.rank]
    right = np.fromfile(path, np.uint8, nbytes, offset=offset)

    def checked(read):
        def way(comm, shared, parts):
            assert (read(shared) == right).all()

        return way

    ways = {
        "all": checked(lambda shared: shared.read([(path, 0, path.stat().st_size)])[offset : offset + nbytes]),
        "own": checked(lambda shared: shared.read([(path, offset, nbytes)])),
        "MPI-IO": checked(lambda shared: shared.read_at_all(path, offset, nbytes)),
    }
    try:
        rows = {row["way"]: row for row in storage.measure_ways(comm, parts, ways)}
    finally:
        emulation.stop()
    whole = path.stat().st_size
    for way, opens, copies in (("all", comm.size, comm.size), ("own", comm.size, 1), ("MPI-IO", 1, 1)):
        row = rows[way]
        assert (row["opens"], row["nbytes"]) == (opens, copies * server.SCALE * whole)
        assert row["seconds"] == pytest.approx(opens * server.OPEN_S + copies * whole * SENT_S, rel=1e-6)


@on_every_rank
def test_training_stops_scaling_with_a_file_per_image_and_a_helper_hides_reading(folder):
    comm = emulation.start("h100").comm

    def ahead(read, n, helper):
        coming = [helper.submit(read, i) for i in range(n)]
        return (each.result() for each in coming)

    def one_file(rank, i):
        first = 64 * rank
        return [(folder / "images" / str(n), 0, ROW_BYTES) for n in range(first, first + 64)]

    def from_whole(rank, i):
        return [(folder / "whole" / "0", 64 * rank * ROW_BYTES, 64 * ROW_BYTES)]

    try:
        slow = training.scaling(comm, 1, one_file)
        in_turn = training.scaling(comm, 3, from_whole)
        prefetched = training.scaling(comm, 3, from_whole, ahead)
    finally:
        emulation.stop()
    sizes = [size for size in (1, 2) if comm.rank < size]
    assert [row["ranks"] for row in slow] == [row["ranks"] for row in prefetched] == sizes
    for row in slow:
        images = 64 * row["ranks"]
        reading_s = images * server.OPEN_S + images * ROW_BYTES * SENT_S
        assert row["opens"] == images
        assert row["waiting"] == pytest.approx(reading_s * row["images_per_s"] / images, rel=1e-6)
    for before, after in zip(in_turn, prefetched, strict=True):
        assert after["nbytes"] == before["nbytes"]
        assert after["waiting"] < 0.7 * before["waiting"] and after["images_per_s"] > before["images_per_s"]


def test_a_helper_reports_an_error_where_its_result_is_asked_for():
    future = storage.Helper().submit(int, "no number")
    with pytest.raises(ValueError, match="no number"):
        future.result()


@needs("tensorflow")
def test_the_script_of_tf_data_measures_its_chains(tmp_path):
    words = [sys.executable, SCRIPTS / "loader_tf.py", tmp_path / "times.json", "2", "1"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    times = json.loads((tmp_path / "times.json").read_text())
    assert list(times) == ["map", "map, in parallel", "interleave", "map, prefetch"]
    assert sum(times["map, prefetch"][0]) < sum(times["map"][0])
