"""The data's copy on a node's own disk: whole, checked, made once."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from workshop_lib.data import mnist, stage
from workshop_lib.training import rendezvous, trainer
from workshop_lib.training.options import TrainOptions


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setenv(stage.VARIABLE, str(tmp_path / "disk"))
    return tmp_path / "disk"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "README.md").write_text("not data")
    for number, name in enumerate(name for pair in mnist.FILES.values() for name in pair):
        (folder / f"{name}.gz").write_bytes(bytes([number]) * 3_000_000)
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*ubyte*")}


def test_the_copy_holds_the_data_files(disk, source):
    target = stage.folder_for(source)
    stage.copy(source, target)
    assert contents(target) == contents(source) and len(contents(target)) == 4
    assert list(disk.iterdir()) == [target], "nothing temporary is left"
    assert not (target / "README.md").exists()


def test_a_whole_copy_is_kept_and_a_damaged_one_replaced(disk, source):
    target = stage.folder_for(source)
    stage.copy(source, target)
    first = next(target.glob("train-images*"))
    made = first.stat().st_ino
    stage.copy(source, target)
    assert first.stat().st_ino == made
    first.write_bytes(b"damaged")
    stage.copy(source, target)
    assert contents(target) == contents(source)
    first.unlink()
    stage.copy(source, target)
    assert contents(target) == contents(source)


def test_changed_data_gets_another_copy(disk, source):
    old = stage.folder_for(source)
    assert stage.folder_for(source) == old, "the same on every rank"
    file = next(source.glob("*.gz"))
    os.utime(file, (1, 1))
    assert stage.folder_for(source) != old


def test_copies_made_at_the_same_time_are_one_and_whole(disk, source):
    target = stage.folder_for(source)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: stage.copy(source, target), range(4)))
    assert contents(target) == contents(source)


def test_what_reads_back_differently_is_not_used(disk, source, monkeypatch):
    real = stage._copy_file

    def broken_disk(reader, writer, deadline):
        digest = real(reader, writer, deadline)
        writer.write_bytes(writer.read_bytes()[:-1])
        return digest

    monkeypatch.setattr(stage, "_copy_file", broken_disk)
    target = stage.folder_for(source)
    with pytest.raises(mnist.DataError, match="reads back differently"):
        stage.copy(source, target)
    assert list(disk.iterdir()) == []


def test_a_copy_that_takes_too_long_or_has_no_place_ends(disk, source, tmp_path, monkeypatch):
    with monkeypatch.context() as at_once:
        at_once.setattr(stage, "COPY_LIMIT_S", -1.0)
        with pytest.raises(mnist.DataError, match="not copied"):
            stage.copy(source, stage.folder_for(source))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(stage.VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(mnist.DataError, match="file/below.* could not be copied .*WORKSHOP_STAGE_DIR"):
        stage.copy(source, stage.folder_for(source))


def test_copying_gives_up_before_the_other_ranks_stop_waiting():
    assert stage.COPY_LIMIT_S < rendezvous.TIMEOUT_S


def test_without_the_variable_or_data_there_is_no_copy(source, tmp_path, monkeypatch):
    monkeypatch.delenv(stage.VARIABLE, raising=False)
    assert stage.folder_for(source) is None
    monkeypatch.setenv(stage.VARIABLE, str(tmp_path))
    assert stage.folder_for(tmp_path / "nothing") is None


def test_training_reads_the_copy_and_ends_with_the_same_weights(disk, small_mnist, monkeypatch):
    options = TrainOptions(max_steps=2, data_dir=small_mnist)
    loaded = []
    real = mnist.load
    monkeypatch.setattr(mnist, "load", lambda *args: loaded.append(str(args[1])) or real(*args))
    staged = trainer.train(options)
    target = stage.folder_for(Path(small_mnist))
    assert loaded == [str(target)] * 2 and len(contents(target)) == 4
    monkeypatch.delenv(stage.VARIABLE)
    assert trainer.train(options)["weights_sha256"] == staged["weights_sha256"]
    assert loaded[2:] == [options.data_dir] * 2
