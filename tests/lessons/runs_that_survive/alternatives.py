"""Right answers to the exercises of 13b beside the solutions, and wrong ones beside the known mistakes."""

from lessons.runs_that_survive import judge as check

SET = """set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )"""
REPLACE = 'os.replace(f"{path}.part", path)'
IMPORTS = "import os, pathlib, shutil, signal, tempfile\nimport torch"


def answer(head: str, *lines: str) -> str:
    body = "\n    ".join(lines)
    return f"{IMPORTS}\ndef {head}:\n    {body}\n"


SAVE = "save(state, path)"
SUPERVISE = "supervise(start, ranks, restarts)"

RIGHT = {
    "save": {
        "a temporary file": answer(
            SAVE,
            "with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:",
            "    torch.save(state, file)",
            "os.rename(file.name, path)",
        ),
        "pathlib": answer(SAVE, "part = path.with_suffix('.new')", "torch.save(state, part)", "part.replace(path)"),
        "moved": answer(SAVE, "torch.save(state, f'{path}.new')", "shutil.move(f'{path}.new', path)"),
    },
    "my_share": {
        "split": """
            def my_share(batch, rank, size):
                mine = np.array_split(batch, size)[rank]
                return mine, len(mine) / len(batch)
            """,
        "bounds": """
            def my_share(batch, rank, size):
                first = len(batch) * rank // size
                last = len(batch) * (rank + 1) // size
                return list(batch[first:last]), torch.tensor((last - first) / len(batch))
            """,
    },
    "resume": {
        "in place": [(SET, "pass")],
        "one after the other": """
            def resume(place, model, optimizer, group):
                from torch.distributed.checkpoint import state_dict as states
                state = {"step": -1, "model": states.get_model_state_dict(model)}
                state["optimizer"] = states.get_optimizer_state_dict(model, optimizer)
                dcp.load(state, checkpoint_id=str(place), process_group=group)
                states.set_model_state_dict(model, state["model"])
                states.set_optimizer_state_dict(model, optimizer, state["optimizer"])
                return state["step"]
            """,
    },
    "interval_s": {
        "Daly": """
            def interval_s(save_s, mtbf_s):
                x = save_s / (2 * mtbf_s)
                return np.sqrt(2 * save_s * mtbf_s) * (1 + x**0.5 / 3 + x / 9) - save_s
            """,
        "tried out": """
            def interval_s(save_s, mtbf_s):
                tried = np.geomspace(1e-3 * mtbf_s, mtbf_s, 1000)
                return tried[np.argmin(save_s / tried + tried / (2 * mtbf_s))]
            """,
    },
    "supervise": {
        "kills all, then waits": [
            (
                "for pid in running:\n            os.kill(pid, signal.SIGKILL)\n            os.waitpid(pid, 0)",
                "for pid in running:\n            os.kill(pid, signal.SIGKILL)\n"
                "        for pid in running:\n            os.waitpid(pid, 0)",
            )
        ],
        "looks now and then": answer(
            SUPERVISE,
            "import time",
            "for attempt in range(restarts + 1):",
            "    running = [start(rank, attempt) for rank in range(ranks)]",
            "    lost = False",
            "    while running and not lost:",
            "        time.sleep(0.01)",
            "        for pid in list(running):",
            "            done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)",
            "            if done and status == 0: running.remove(pid)",
            "            elif done:",
            "                lost = True",
            "                if not os.WIFSTOPPED(status): running.remove(pid)",
            "    if not lost: return attempt",
            "    for pid in running:",
            "        os.kill(pid, signal.SIGKILL)",
            "        os.waitpid(pid, 0)",
            "raise RuntimeError('too many restarts')",
        ),
    },
}
WRONG = {
    "resume": {
        "the model alone": (
            """
            def resume(place, model, optimizer, group):
                state = {"model": model.state_dict(), "step": 0}
                dcp.load(state, checkpoint_id=place, process_group=group)
                return state["step"]
            """,
            "Adam's moments start at zero again",
        )
    },
    "save": {
        "straight into the file": (answer(SAVE, "torch.save(state, path)"), check.DIRECT_HINT),
        "copied": (
            answer(SAVE, "torch.save(state, f'{path}.part')", "shutil.copyfile(f'{path}.part', path)"),
            "would find half a checkpoint",
        ),
        "silent": (
            answer(
                SAVE, "try:", "    torch.save(state, f'{path}.part')", f"    {REPLACE}", "except OSError:", "    pass"
            ),
            check.SILENT_HINT,
        ),
        "the weights alone": (
            answer(SAVE, "torch.save(state['weights'], f'{path}.part')", REPLACE),
            "save all of `state`",
        ),
    },
    "supervise": {
        "no kill of a stopped one": ([(", os.WUNTRACED", ", 0")], "os.WUNTRACED"),
        "no error at the end": (
            [('raise SystemExit(f"given up after {restarts} restarts")', "return")],
            check.ERROR_HINT,
        ),
        "waits for one rank after the other": (
            answer(
                SUPERVISE,
                "for attempt in range(restarts + 1):",
                "    pids = [start(rank, attempt) for rank in range(ranks)]",
                "    if not any([os.waitpid(pid, 0)[1] for pid in pids]): return",
                "raise SystemExit('given up')",
            ),
            "it waits for rank 0",
        ),
        "kills nobody": ([("for pid in running:", "for pid in ():")], check.KILL_HINT),
        "never gives up": ([("range(restarts + 1)", "__import__('itertools').count()")], "after `restarts`"),
    },
}
NEVER_ENDS = {"resume": {"waits for all": ([(", process_group=group", "")], "give `dcp.load` the `process_group`")}}
