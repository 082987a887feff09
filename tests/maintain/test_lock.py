"""What `make lock` keeps of what uv found, for uv itself, and for pip and conda."""

from workshop_lib.maintain import bootstrap, lock

UV = """\
#!/bin/sh
cat > lock.txt << END
numpy==2.4.0 \\\\
    --hash=sha256:aa
nvidia-nccl-cu13==2.29 ; sys_platform == 'linux' \\\\
    --hash=sha256:bb
torch==2.13.0 \\\\
    --hash=sha256:cc
END
"""


def test_the_lock_has_hashes_of_all_but_pytorch_and_the_constraints_have_none(monkeypatch, tmp_path):
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setattr(bootstrap, "find_uv", lambda: str(uv))
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert lock.main(["--upgrade"]) == 0
    assert (tmp_path / "lock.txt").read_text().splitlines()[1:] == [
        "numpy==2.4.0 \\",
        "    --hash=sha256:aa",
        "torch==2.13.0",
    ]
    assert (tmp_path / "constraints.txt").read_text().splitlines()[1:] == ["numpy==2.4.0", "torch==2.13.0"]
    uv.write_text("#!/bin/sh\nexit 2\n")
    assert lock.main([]) == 2
