"""What is under version control: the layout, the data and its card, nothing that ties it to one place."""

import gzip
import hashlib
import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from command_line import workshop
from matplotlib import image

from workshop_lib import exercises
from workshop_lib.lessons.gradient_noise import critical_batch, steps_to_target
from workshop_lib.maintain import generate, pytorch_build
from workshop_lib.paths import ROOT, SCRIPTS
from workshop_lib.results import curves, records

FIGURES, RESULTS = ROOT / "assets" / "figures", ROOT / "assets" / "results"


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "assets" / "mnist").glob("*.gz")))
def test_the_data_card_describes_the_files(name):
    card = (ROOT / "assets" / "mnist" / "README.md").read_text()
    packed = (ROOT / "assets" / "mnist" / name).read_bytes()
    for file, content in ((name, packed), (name.removesuffix(".gz"), gzip.decompress(packed))):
        row = f"| `{file}` | {len(content):,} | `{hashlib.sha256(content).hexdigest()}` |"
        assert row in card, f"the card does not say: {row}"


def test_the_book_says_what_was_measured():
    text = (ROOT / "book" / "measured.md").read_text()
    for record in records.read(RESULTS / "bench.jsonl"):
        row = f"| {record['name']} | {record['median']:.3g} |"
        assert row in text, f"book/measured.md does not say: {row}"


@pytest.fixture(scope="module")
def tracked():
    """Names of the files under version control."""
    ran = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    if not ran.stdout:
        pytest.skip("not a git checkout")
    return ran.stdout.splitlines()


def test_the_figures_are_what_the_records_draw(tmp_path):
    for folder in FIGURES.iterdir():
        done = workshop("plot", f"{RESULTS / folder.name}.jsonl", "--out-dir", tmp_path / folder.name)
        assert done.exit_code == 0, done.output
    figures = sorted(str(path.relative_to(FIGURES)) for path in FIGURES.rglob("*.png"))
    assert figures == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    for name in figures:
        kept, drawn = (image.imread(folder / name) for folder in (FIGURES, tmp_path))
        assert kept.shape == drawn.shape, f"run `make figures`: {name} has another size"
        assert abs(kept - drawn).mean() < 0.002, f"run `make figures`: {name} shows something else"


def test_every_point_of_the_readmes_scaling_figure_has_a_spread():
    points = curves.throughput(curves.to_frame(records.read(RESULTS / "demo.jsonl")))
    assert points["repeats"].min() >= 5, points[["backend", "world_size", "repeats"]]


def test_the_large_batch_records_show_what_notebook_07_says_of_them():
    found = curves.accuracies(records.read(RESULTS / "large_batch.jsonl"))
    assert found.groupby(["recipe", "workers"])["seed"].nunique().min() >= 3
    reached = found.set_index(["recipe", "workers"])["test_accuracy"].sort_index()
    for recipe in found["recipe"].unique():
        assert set(reached[recipe].index) == {1, 4, 8, 16, 32, 64, 128, 256}, recipe
    for recipe in ("linear", "linear, 5 warm-up epochs"):
        assert reached[recipe].loc[:32].min() > 98.5, "all is well up to 32 workers"
        assert reached[recipe].loc[256].max() < 15, "with 256 every run collapsed"
        edge = reached[recipe].loc[128]
        assert edge.max() - edge.min() > 20, "in between it depends on the seed"
    mean = found.groupby(["recipe", "workers"])[["train_accuracy", "test_accuracy"]].mean()
    at_64 = mean["test_accuracy"].xs(64, level="workers")
    assert at_64["linear, 5 warm-up epochs"] > at_64["linear"], "warm-up helps at 64 workers"
    assert mean.loc["square root", "test_accuracy"].is_monotonic_decreasing, "and falls steadily"
    lars = mean.loc["LARS, square root, 5 warm-up epochs"]
    assert reached["LARS, square root, 5 warm-up epochs"].min() > 98, "LARS trains at every number of workers"
    falls = lars.loc[8] - lars.loc[256]
    assert falls["train_accuracy"] > 2 * falls["test_accuracy"] > 0, "training falls more than the test"


def test_the_search_for_128_workers_shows_what_notebook_07_says_of_it():
    reached = {}
    for run in records.read(RESULTS / "large_batch_search.jsonl"):
        what, last = run["what"], run["epochs"][-1]
        assert (what["emulate_workers"], what["global_batch"], last["epoch"]) == (128, 8192, 32)
        reached.setdefault(what["optimizer"], {})[what["lr"]] = 100 * last["test_accuracy"]
    assert {name: len(rates) for name, rates in reached.items()} == {"sgd": 4, "lars": 4, "lamb": 4, "rmsprop-sgd": 4}
    best = {name: max(rates, key=rates.get) for name, rates in reached.items()}
    assert reached["sgd"][best["sgd"]] >= 98.5, "plain SGD trains too"
    assert reached["sgd"][2 * best["sgd"]] < 95, "in a narrow window"
    for name in ("lars", "lamb"):
        assert reached[name][best[name]] > reached["sgd"][best["sgd"]] + 0.2, "come a little further"
        assert reached[name][2 * best[name]] > 98.5, "bear twice their best rate"


def test_the_long_run_bears_out_what_notebook_07b_says_of_it():
    long_run = records.read(RESULTS / "steps_to_target.jsonl")
    rates = [best.lr for best in steps_to_target.best_rates(long_run).values()]
    assert max(rates) <= 2 * min(rates), "the best rates hardly rise"
    found = critical_batch.fit(*steps_to_target.pairs(long_run))
    rule_of_thumb = 60_000**0.5
    assert found.intervals["b_crit"][1] < rule_of_thumb
    assert 2.5 < rule_of_thumb / found.b_crit < 3.5, "three times the critical batch"
    assert 3.5 < found.samples(rule_of_thumb) / found.e_min < 4.5, "four times the fewest samples"
    assert 90 < found.samples(128 * 64) / found.e_min < 120, "128 workers: a hundred times the fewest samples"


def test_the_records_show_what_notebook_07c_says_of_less_communication():
    runs = pd.DataFrame([run["what"] | run for run in records.read(RESULTS / "less_communication.jsonl")])
    runs["way"] += np.where(runs["momentum"] > 0, " with momentum", "")
    of_ways = runs.groupby("way")
    reached, sent = 100 * of_ways["test_accuracy"].median(), of_ways["bytes_per_sample"].first()
    assert (of_ways["seed"].nunique() == 3).all()
    fp32, with_momentum = reached["fp32"], reached["fp32 with momentum"]
    assert reached.idxmin() == "top 1 %, no feedback", "worst of all"
    for way in ("top 1 %", "PowerSGD, rank 2", "local SGD, 8 steps alone", "local SGD, 64 steps alone"):
        assert reached[way] > fp32 - 0.25, f"{way} loses nothing"
    assert reached["top 0.1 %"] < fp32 - 1, "500 times fewer lose more than a point"
    assert 490 < sent["fp32"] / sent["top 0.1 %"] < 520
    assert fp32 < reached["DiLoCo, 64 steps alone"] < with_momentum, "with momentum, it's ahead again"
    assert abs(reached["DiLoCo, 8 steps alone"] - with_momentum) < 0.3, "and level with 8 steps alone"
    assert reached["DiLoCo, 8 steps alone"] > fp32 + 0.5, "which are clearly ahead of fp32 without it"


def test_the_readme_lists_every_notebook_and_marks_the_core_path():
    text = (ROOT / "README.md").read_text()
    listed = re.findall(r"^\| (\**)\[(\w+)\]\(notebooks/(\w+)\.ipynb\)", text, re.MULTILINE)
    assert [name for _, name, _ in listed] == [stem for _, _, stem in listed] == [s.stem for s in generate.sources()]
    assert tuple(name[:2] for bold, name, _ in listed if bold) == exercises.CORE_PATH


def test_the_readme_can_be_read_in_one_go():
    assert len((ROOT / "README.md").read_text().split()) <= 1500


def test_the_torchrun_of_readme_and_scripts_asks_nobody_for_this_machines_name():
    [shown] = re.findall(r"^(\.venv/bin/torchrun .+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    commands = re.findall(r"`(\.venv/bin/torchrun .+)` \|", (SCRIPTS / "README.md").read_text())
    assert len(commands) == 7 and shown in commands
    assert all(" --standalone --local-addr 127.0.0.1 " in command for command in commands)


def test_each_link_leads_to_a_file_and_each_make_command_exists(tracked):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / name for name in tracked if name.endswith(".md")):
        text = page.read_text()
        for link in re.findall(r"\]\((?!https?:)([^)\s#]+)(?:#[^)\s]*)?\)", text):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}, which isn't there"
        named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", text, re.MULTILINE))
        assert named <= targets, f"{page.relative_to(ROOT)} names make {', '.join(named - targets)}"


def test_the_house_in_contributing_has_every_folder(tracked):
    """Its picture has each folder of the top level, of notebooks and of workshop_lib, and no other."""
    drawn = re.findall(r"^(│   |    )?[├└]── (\w+)/", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    inside, top = [], ""
    for indented, name in drawn:
        top = top if indented else name
        inside.append(f"{top}/{name}" if indented else name)
    folders = [name.split("/")[:-1] for name in tracked if not name.startswith(".")]
    there = {parts[0] for parts in folders if parts}
    there |= {"/".join(parts[:2]) for parts in folders if parts[1:] and parts[0] in ("notebooks", "workshop_lib")}
    assert sorted(inside) == sorted(there)


def test_packages_come_from_where_pip_is_told_to_look(tracked):
    """A host name in a file would break machines behind a mirror.

    The one exception asks PyTorch's index for a smaller build, and does without where it can't be reached.
    """
    names = ("py" r"pi\.org", "python" r"hosted\.org", "download\\.py" r"torch\.org", "ana" r"conda\.org")
    hosts = re.compile(rf"\b({'|'.join(names)})")
    for path in (ROOT / name for name in tracked):
        if path.suffix not in (".gz", ".png") and path.is_file():
            found = hosts.search(path.read_text().replace(pytorch_build.INDEXES, ""))
            assert not found, f"{path.relative_to(ROOT)} names {found[0]}"


def test_the_top_level_is_as_the_readme_says(tracked):
    allowed = {
        ".binder",
        ".ci",
        ".devcontainer",
        ".github",
        ".gitignore",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "assets",
        "book",
        "constraints.txt",
        "environment.yml",
        "notebooks",
        "pyproject.toml",
        "submissions",
        "tests",
        "workshop_lib",
    }
    assert {name.split("/")[0] for name in tracked} <= allowed


def test_no_two_test_files_have_one_name():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names), "pytest can't collect them together"
