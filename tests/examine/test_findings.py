"""Each check on recorded observations: silent on those of a correct run, and its finding after one change to them."""

import ast
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import recorded

from workshop_lib.classroom import generate
from workshop_lib.examine import checks
from workshop_lib.examine.checks import machine
from workshop_lib.examine.findings import TABLE, found
from workshop_lib.examine.observations import Kind, RankLog, Run, read_records
from workshop_lib.examine.records import (
    Backward,
    Clip,
    CollectiveCalls,
    CollectiveRecord,
    DdpRecord,
    EndRecord,
    EpochRecord,
    ErrorRecord,
    EvaluationRecord,
    FetchRecord,
    GroupRecord,
    IndicesRecord,
    LabelsRecord,
    LoadRecord,
    LossPart,
    ModelRecord,
    OptimizerStep,
    ParameterRecord,
    Record,
    SaveRecord,
    StartRecord,
    StepRecord,
    UnseenRecord,
)
from workshop_lib.examine.sections import SECTIONS
from workshop_lib.findings import LEVELS, Finding, as_data, as_text, worst

CASES: list[tuple[str, Callable[[Run], object], str, str, str]] = []
SHARED_GPU = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 60"  # one H200, NCCL 2.28


def case(level: str, check: str, says: str):
    """Add a case: the decorated function changes a correct run, and this finding must follow."""

    def add(change: Callable[[Run], object]) -> Callable[[Run], object]:
        CASES.append((change.__name__, change, level, check, says))
        return change

    return add


def steps_of(run: Run, *ranks: int):
    return [step for rank in ranks or range(run.size) for step in run.ranks[rank].steps.values()]


def records_of(run: Run, kind: type[Kind], *ranks: int) -> list[Kind]:
    return [record for rank in ranks or range(run.size) for record in run.ranks[rank].of(kind)]


def for_both(run: Run, kind: type[Record], **values):
    for record in records_of(run, kind):
        vars(record).update(values)


def leave_out(log: RankLog, *kinds: type[Record]):
    log.records[:] = [record for record in log.records if not isinstance(record, kinds)]


# A sum over the samples of all ranks that is averaged again.
SUMS = [LossPart("train.py:7", 2, "sum", "cross_entropy", value=1.4, weight=0.25)]
# The level, the check and a part of what must be found after one kind of record got these values on both ranks.
CHANGED = [
    ("look", "optimizer", "no optimizer updates last.weight", StepRecord, {"stepped_names": ["first.weight"]}),
    ("wrong", "optimizer", "holds none of the model's", StepRecord, {"stepped_names": [], "weights": [7, 8]}),
    ("wrong", "size of gradients", "the mean over all ranks, divided by 2", StepRecord, {"ready": 1.5}),
    (
        "look",
        "size of gradients",
        "the mean over all ranks, divided by 2",
        StepRecord,
        {"losses": SUMS, "roots": [0.35]},
    ),
    ("look", "size of gradients", "the sum over the ranks: 2 times their mean", StepRecord, {"ready": 6.0}),
    (
        "wrong",
        "clipping",
        "GradScaler's factor still multiplies",
        StepRecord,
        {"clips": [Clip(1.5, "train.py:9", scaled=True)]},
    ),
    ("look", "unused", "last.weight never got a gradient", StepRecord, {"without_gradient": ["last.weight"]}),
    ("look", "coverage", "left out 8 of 24 samples", EpochRecord, {"samples": 24}),
    ("look", "mode", "Dropout evaluates in training mode (train.py:20)", EvaluationRecord, {"on": ["Dropout"]}),
    (
        "wrong",
        "checkpoint",
        "rank 0 alone saves /tmp/model.pt (train.py:30), with 2 tensors",
        SaveRecord,
        {"shares": 2},
    ),
    ("wrong", "devices", "ranks 0, 1 compute on cuda:0", ModelRecord, {"device": "cuda:0", "accelerators": 2}),
    ("look", "devices", "the model is on the CPU, and there are 2 accelerators", ModelRecord, {"accelerators": 2}),
]


@case("wrong", "weights", "before the first step, the ranks' weights differ in last.weight: they were equal when DDP")
def changed_after_wrapping(run):
    records_of(run, EndRecord, 1)[0].weights = [-1, -1]
    for step in steps_of(run, 1):
        step.weights = [step.weights[0], -1]


@case("wrong", "weights", "after step 3, the ranks' weights differ in first.weight, last.weight: the learning rates")
def other_rate(run):
    records_of(run, EndRecord, 1)[0].weights = [-1, -1]
    for number, step in run.ranks[1].steps.items():
        step.optimizers = [OptimizerStep("SGD", [0.2])] if number == 3 else step.optimizers
        step.weights = [-number, -number] if number > 3 else step.weights


@case("wrong", "weights", "DDP doesn't average the gradients of last.weight")
def a_gradient_left_out(run):
    records_of(run, EndRecord, 1)[0].weights = [-1, -1]
    for number, step in run.ranks[1].steps.items():
        step.gradients = [number + 100, -1]
        step.weights = [number, -1] if number > 1 else step.weights


@case(
    "wrong", "weights", "since one of the steps 1 to 3, the ranks' weights differ in last.weight: DDP doesn't average"
)
def a_gradient_left_out_between_looks(run):
    for number in (2, 3):
        for rank in run.ranks:
            rank.steps[number].weights = rank.steps[number].gradients = None
    records_of(run, EndRecord, 1)[0].weights = [-1, -1]
    for number, step in run.ranks[1].steps.items():
        if number > 3:
            step.gradients = [step.gradients[0], -1]
            step.weights = [step.weights[0], -1]


@case("wrong", "weights", "last.weight got a gradient on some ranks only")
def a_gradient_missing(run):
    records_of(run, EndRecord, 1)[0].weights = [-1, -1]
    run.ranks[1].steps[1].gradients_of = ["first.weight"]
    for number, step in run.ranks[1].steps.items():
        step.weights = [number, -1] if number > 1 else step.weights


@case("wrong", "weights", "rank 1 skipped the step because its own gradients overflowed")
def skipped(run):
    records_of(run, EndRecord, 1)[0].weights = [-1, -1]
    run.ranks[1].steps[2].skipped = True
    for number, step in run.ranks[1].steps.items():
        step.weights = [-1, -1] if number > 2 else step.weights


@case("wrong", "weights", "the final weights differ between the ranks, in last.weight")
def only_the_end_differs(run):
    records_of(run, EndRecord, 1)[0].weights = [9, -1]


@case("look", "weights", "the ranks' models have different parameters: extra")
def another_model(run):
    run.ranks[1].model.parameters = [*run.ranks[1].model.parameters, ParameterRecord("extra", [1], True, False)]


@case("wrong", "batches", "ranks 0 and 1 trained on the same 2 samples in 8 of 8 steps, from step 1 on")
def same_batches_of_shares(run):
    same_batches(run)
    for number, rank in enumerate(run.ranks):
        shares = [ParameterRecord(name, [7 + 3 * number], True, True) for name in recorded.NAMES]
        vars(rank.model).update(ddp=False, fsdp=True, parameters=shares)


@case("wrong", "frozen", "first.weight is trained on some ranks and frozen on others")
def frozen(run):
    run.ranks[1].model.parameters[0].trains = False


@case("look", "weights", "after step 1, ")
def equal_at_the_end(run):
    for step in steps_of(run, 1):
        if step.step > 1:
            step.weights = [-1, -1]


@case("wrong", "batches", "ranks 0 and 1 trained on the same 2 samples in 8 of 8 steps, from step 1 on")
def same_batches(run):
    for number, step in run.ranks[1].steps.items():
        step.forwards[0].samples = run.ranks[0].samples(number)


@case("look", "batches", "100% of the samples that rank 0 saw in one pass, rank 1 saw too")
def same_indices_with_noise(run):
    for record in records_of(run, EpochRecord):
        record.distributed = None
    for first, second in zip(records_of(run, IndicesRecord, 0), records_of(run, IndicesRecord, 1), strict=True):
        second.values = first.values
    for step in steps_of(run):
        step.drew_data = ["torch"]


@case("look", "batches", "ranks 0 and 1 trained on the same 2 samples")
def one_batch_made_up(run):
    for step in steps_of(run):
        step.forwards[0].samples = [1, 2]


@case("wrong", "sampler", "on rank 1 of 2, the DistributedSampler is rank 0 of 2")
def rank_of_sampler(run):
    for record in records_of(run, EpochRecord, 1):
        record.distributed.rank = 0


@case("wrong", "sampler", "a different seed on each rank: [0, 1]")
def seed_of_sampler(run):
    for record in records_of(run, EpochRecord, 1):
        record.distributed.seed = 1


@case("look", "sampler", "shares out the data, but 30 of 40 samples of one index differ between the ranks")
def a_dataset_of_each_rank_shared_out_again(run):
    for number, rank in enumerate(run.ranks):
        rank.first(IndicesRecord).values = list(range(40))
        values = [[index % 4 * number] for index in range(40)]
        rank.records.append(LabelsRecord(loader=0, epoch=1, values=values))


@case("wrong", "order", "on rank 0, epoch 2 loads the samples in the order of epoch 1")
def same_order(run):
    for rank in run.ranks:
        first, second = rank.of(IndicesRecord)
        second.values = first.values


@case("look", "parts", "in step 4, the ranks had 2, 1 samples")
def unequal_batches(run):
    run.ranks[1].steps[4].forwards[0].size = 1
    run.ranks[1].steps[4].losses = []  # of a kind that isn't followed


@case("look", "parts", "in step 3, train.py:7 takes, on the ranks, means over 7, 5 samples or tokens")
def unequal_means(run):
    for step, count in zip((run.ranks[0].steps[3], run.ranks[1].steps[3]), (7, 5), strict=True):
        step.losses = [recorded.loss(count)]


@case("look", "parts", "takes, on the ranks, sums over 7, 5 samples or tokens, and divides them by different numbers")
def sums_divided_by_their_own_counts(run):
    for step, count in zip((run.ranks[0].steps[3], run.ranks[1].steps[3]), (7, 5), strict=True):
        step.losses = [recorded.loss(count, "sum", 1 / count)]


@case("look", "parts", "train.py:7 takes, in the micro-batches of rank 0, means over 9, 3 samples or tokens")
def unequal_micro_batches(run):
    for step in (run.ranks[0].steps[3], run.ranks[1].steps[3]):
        step.forwards *= 2
        step.losses = [recorded.loss(9, weight=0.5), recorded.loss(3, weight=0.5)]


@case("wrong", "zeroed", "from step 2 on, each backward pass adds to the gradients")
def never_zeroed(run):
    for step in steps_of(run):
        step.kept = True
    for rank in run.ranks:
        rank.steps[1].kept = None


def repeated(run: Run, factor: float, share: float):
    alone = recorded.run()
    run.repeated = Run(alone.ranks[:1])
    run.against_one = (factor, share)
    for step in (*steps_of(run), *steps_of(run.repeated)):
        step.forwards[0].drew = False


@case("wrong", "against one", "the first step's gradient is 0.5 times that of one process")
def half_of_one_process(run):
    repeated(run, 0.5, 1e-7)


@case("look", "against one", "the first step's gradient differs by 8% from that of one process")
def unlike_one_process(run):
    repeated(run, 1.0, 0.08)


@case("ok", "against one", "one process with the same samples has the same gradient, up to 1e-07")
def like_one_process(run):
    repeated(run, 1.0, 1e-7)


@case("look", "against one", "the first step can't be compared with one process: the forward pass draws random numbers")
def one_process_with_dropout(run):
    repeated(run, 1.0, 0.3)
    run.ranks[0].steps[1].forwards[0].drew = True


@case("wrong", "rate", "the learning rate is 0 in the last 5 of 8 steps")
def a_schedule_that_ends_early(run):
    for step in steps_of(run):
        step.optimizers = [OptimizerStep("SGD", [0.1 if step.step <= 3 else 0.0])]


@case("wrong", "weights", "after step 1, the ranks' weights differ in Head.w, which the optimizer updates")
def a_criterion_with_weights(run):
    for rank in range(2):
        for step in steps_of(run, rank):
            step.outside = [("Head.w", rank)]


@case("wrong", "weights", "before step 10, the ranks' weights differ in critic.weight of a second model")
def a_second_model_not_wrapped(run):
    parameters = [ParameterRecord("critic.weight", [2], True, False)]
    for number, rank in enumerate(run.ranks):
        rank.records.append(replace(rank.model, model=7, parameters=parameters))
        for step, weights in ((9, [9]), (10, [10 + number])):
            rank.steps[step] = replace(recorded.step(number, step), weights_model=7, weights=weights, forwards=[])


@case("wrong", "metric", "the ranks evaluate a model with different weights (train.py:20)")
def averaged_weights_on_one_rank(run):
    for rank in range(2):
        records_of(run, EvaluationRecord, rank)[0].others = {"1": [rank]}


@case("wrong", "sampler", "the ranks train on different subsets of the data")
def a_split_of_each_rank(run):
    for rank in range(2):
        for record in records_of(run, EpochRecord, rank):
            record.subset = str(rank)


@case("look", "resume", "train.py:4 reads a checkpoint with an optimizer's state, and only the network is loaded")
def a_resumed_network_alone(run):
    for rank in run.ranks:
        rank.records.append(LoadRecord(what="file", line="train.py:4", optimizer=True))
        rank.records.append(LoadRecord(what="model", line="train.py:5"))


@case("look", "resume", "train.py:4 reads a checkpoint with the number of its epoch and no optimizer's state")
def a_checkpoint_without_optimizer(run):
    for rank in run.ranks:
        rank.records.append(LoadRecord(what="file", line="train.py:4", counter="epoch"))
        rank.records.append(LoadRecord(what="model", line="train.py:5"))


@case("look", "augmentation", "all ranks' loading workers, or several of one rank, drew the same numbers (numpy)")
def the_same_noise_in_workers(run):
    for rank in run.ranks:
        rank.workers = [[FetchRecord(worker=0, random={"numpy": "7"}, drew=["numpy"])]]


def failing(run: Run, text: str, error: str = "SystemExit", says: str = ""):
    run.how = "failed"
    run.last_lines = [says]
    for rank in run.ranks:
        leave_out(rank, EndRecord)
        rank.records.append(ErrorRecord(error=error, text=text, place=("train.py", 7, "main"), time=1.0))


@case("look", "ended", "nothing was watched: train.py:9 starts 4 processes of its own: work")
def own_ranks(run):
    failing(run, "train.py:9 starts 4 processes of its own: work", "StartsItsOwnRanks")


@pytest.mark.parametrize(
    ("text", "says", "advice"),
    [
        ("exit code 2", "error: the following arguments are required: --local_rank", "os.environ['LOCAL_RANK']"),
        ("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", "", "--pretend-gpu"),
        ("AssertionError: Torch not compiled with CUDA enabled", "", "This machine has no GPU"),
        (
            f"DistBackendError: NCCL error in: x.cpp:93, invalid usage\nLast error:\n{SHARED_GPU}",
            "",
            "one rank for each GPU",
        ),
    ],
)
def test_an_old_launchers_option_and_a_missing_or_shared_gpu_are_told_with_the_scripts_line(text, says, advice):
    run = recorded.run()
    failing(run, text, says=says)
    ended = next(each for each in checks.examine(run) if each.check == "ended")
    assert "failed in step 8 at train.py, line 7" in ended.seen and advice in ended.remedy
    assert text.splitlines()[-1] in ended.seen, "NCCL gives the reason last"


@case("look", "unseen", "couldn't look at labels (train.py:3): TypeError: no length")
def something_unseen(run):
    text = "TypeError: no length"
    run.ranks[1].records.append(UnseenRecord(step=2, what="labels", text=text, line="train.py:3"))


def test_samples_that_count_equally_although_the_parts_differ_are_right():
    run = recorded.run()
    for step, count in zip((run.ranks[0].steps[3], run.ranks[1].steps[3]), (7, 5), strict=True):
        step.forwards[0].size = count
        step.losses = [recorded.loss(count, weight=count / 6)]
    assert not [each for each in checks.examine(run) if each.check == "parts"]


def test_two_passes_of_which_the_second_begins_anew_accumulate_nothing():
    run = recorded.run()
    sent_twice(run)
    for step in steps_of(run):
        step.anew = 2
    assert level(run, "accumulation") == []


def test_half_of_a_squared_error_is_right():
    run = recorded.run()
    for step in steps_of(run):
        step.losses = [recorded.loss(weight=0.5, name="mse_loss")]
        step.roots = [0.35]
    assert level(run, "size of gradients") == []


def test_a_check_that_fails_leaves_the_rest_of_the_report():
    run = recorded.run()
    for step in steps_of(run):
        step.clips = [None]
    findings = checks.examine(run)
    [unseen] = [each for each in findings if "gradients.clipping failed" in each.seen]
    assert unseen.check == "unseen" and len(findings) > 10


def test_half_of_a_loss_beside_another_one_is_right():
    run = recorded.run()
    for step in steps_of(run):
        step.losses = [recorded.loss(weight=0.5)]
    assert "ok" in level(run, "size of gradients")


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_accumulated_gradients_are_right_with_and_without_dividing_by_the_micro_batches(factor):
    """Two micro-batches on two ranks: a factor of 2 may be that of the micro-batches."""
    run = recorded.run()
    for step in steps_of(run):
        step.backwards *= 2
        step.losses = [recorded.loss(weight=factor / 2)] * 2
        step.roots = [factor * 0.35] * 2
    assert not [each for each in checks.examine(run) if each.check == "size of gradients" and each.level != "ok"]


@case("wrong", "clipping", "in step 5, train.py:9 clips gradients of norm 1.5, 2.5")
def clipped_before(run):
    run.ranks[1].steps[5].clips = [Clip(2.5, "train.py:9", scaled=False)]


@case("wrong", "clipping", "in step 5, ranks multiply their shares of the gradients by 0.5, 0.25")
def shares_clipped_by_their_own_norms(run):
    for number, rank in enumerate(run.ranks):
        vars(rank.model).update(ddp=False, fsdp=True)
        rank.steps[5].share_scale = [0.5, 0.25][number]


@case("look", "order", "from step 5 on, rank 0's batches repeat those from step 1 on")
def a_stream_in_the_same_order(run):
    for rank in run.ranks:
        leave_out(rank, IndicesRecord)
        for number in range(5, 9):
            rank.steps[number].forwards[0].samples = rank.samples(number - 4)


@case("look", "accumulation", "in step 1, each of 2 micro-batches begins without the gradients of the one before")
def zeroed_between_micro_batches(run):
    for step in steps_of(run):
        step.forwards.append(replace(step.forwards[0], samples=[-step.step]))
        step.backwards *= 2
        step.anew = 2


@case("look", "accumulation", "step 4 adds up 2 micro-batches, 1 of them left over from the epoch before; other")
def left_over(run):
    run.ranks[0].of(EpochRecord)[1].open_passes = 1
    run.ranks[0].steps[4].backwards *= 2


@case("look", "accumulation", "a step has 2 micro-batches, and the gradients were sent after 2 of them")
def sent_twice(run):
    for step in steps_of(run):
        step.forwards *= 2
        step.backwards *= 2


@case("wrong", "accumulation", "of 3 micro-batches, FSDP hasn't sent the gradients of the last 2")
def sent_after_the_first(run):
    for_both(run, ModelRecord, ddp=False, fsdp=True)
    for step in steps_of(run):
        step.forwards *= 3
        step.backwards = [Backward(0.1, 0.1, sync) for sync in (True, False, False)]


@case("look", "metric", "after step 8, each rank evaluated different samples (train.py:20)")
def not_combined(run):
    for_both(
        run,
        EvaluationRecord,
        collectives={"barrier between": CollectiveCalls(1), "decision between": CollectiveCalls(1, 8)},
    )


def test_what_a_policy_plays_is_no_evaluation():
    run = recorded.run()
    not_combined(run)
    for record in records_of(run, EvaluationRecord):
        record.forwards[0].loader = None
    assert "metric" not in {each.check for each in checks.examine(run)}


@pytest.mark.parametrize(("chances", "found"), [(True, []), (False, ["look"])])
def test_ranks_that_draw_from_all_samples_share_some_by_chance(chances, found):
    run = recorded.run()
    for number, rank in enumerate(run.ranks):
        for step in rank.steps.values():
            first = 100 * number + 10 * step.step
            # A batch of ten: one that both ranks have, and one that came before, if they are drawn from all.
            batch = [*range(first, first + 8), step.step, 999 if chances else 1000 * first]
            vars(step.forwards[0]).update(loader=None, samples=batch)
        leave_out(rank, EpochRecord, IndicesRecord)
    assert [each for each in level(run, "batches") if each != "ok"] == found


@case("look", "buffers", "ranks evaluate with different buffers: var")
def other_buffers(run):
    records_of(run, EvaluationRecord, 1)[0].buffers = [5, 7]


@case("look", "padding", "loads 1 of 5 samples twice")
def padded(run):
    for number, rank in enumerate(run.ranks):
        rank.records.append(recorded.epoch(number, 1, loader=1, samples=5))
        values = [[0, 2, 4], [1, 3, 0]][number]
        rank.records.append(IndicesRecord(step=8, loader=1, epoch=1, values=values))


@case("look", "dropout", "in 8 steps, all ranks drew the same random numbers")
def same_dropout(run):
    for step in steps_of(run):
        step.forwards[0].random["torch"] = step.step


@case("look", "augmentation", "all ranks drew the same numbers (python) while loading")
def same_augmentation(run):
    for step in steps_of(run):
        step.drew_data = ["python"]
        step.forwards[0].random["python"] = step.step


@case("wrong", "files", "ranks 0, 1 write /tmp/model.pt")
def both_save(run):
    run.ranks[1].records.append(records_of(run, SaveRecord, 0)[0])


@case("wrong", "resume", "rank 0 loaded the optimizer's state at train.py:5, and rank 1 didn't")
def one_resumes(run):
    run.ranks[0].records.append(LoadRecord(what="optimizer", line="train.py:5"))


@case(
    "look", "straggler", "in 5 of 5 steps, the ranks waited for rank 1, usually 60 ms, 55 ms of them for loading data"
)
def slow_loading(run):
    for step in steps_of(run, 1):
        step.data_s += 0.055
        step.backwards[0].begin_s += 0.06


@case("wrong", "steps", "the ranks took different numbers of steps: 8, 7")
def a_step_less(run):
    del run.ranks[1].steps[8]
    records_of(run, EndRecord, 1)[0].weights = [1, 1]


@case("wrong", "joined", "never called init_process_group")
def no_group(run):
    for rank in run.ranks:
        leave_out(rank, GroupRecord)


@case("look", "joined", "the script imports mpi4py and never called init_process_group")
def joined_by_mpi(run):
    no_group(run)
    for_both(run, ModelRecord, joined_by=["mpi4py"])


@case("wrong", "ended", "rank 1 failed in step 8 at train.py, line 7: ValueError: bad\nrank 0 had ended")
def failed(run):
    run.how = "failed"
    error = ErrorRecord(step=8, error="ValueError", text="ValueError: bad", place=("train.py", 7, "main"), time=1.0)
    run.ranks[1].records = [*run.ranks[1].records[:-1], error]


@case("wrong", "ended", "rank 0 waited for a call that another rank never made:\nrank 0: at train.py, line 5, in main:")
def stuck(run):
    run.how = "stuck"
    run.stacks = {0: [{"file": "train.py", "line": 5, "name": "main"}]}


def test_a_correct_run_has_nothing_to_change():
    findings = checks.examine(recorded.run())
    assert [finding for finding in findings if finding.level != "ok"] == []
    assert {"weights", "batches", "coverage", "order", "clipping", "metric", "files"} <= {
        each.check for each in findings
    }


def assert_found(run: Run, level: str, check: str, says: str):
    findings = checks.examine(run)
    assert [each for each in findings if each.check == check and each.level == level and says in each.seen], [
        (each.level, each.check, each.seen) for each in findings
    ]


@pytest.mark.parametrize(("name", "change", "level", "check", "says"), CASES, ids=[case[0] for case in CASES])
def test_a_change_is_found(name, change, level, check, says):
    run = recorded.run()
    _ = [rank.steps for rank in run.ranks]
    change(run)
    assert_found(run, level, check, says)


@pytest.mark.parametrize(("level", "check", "says", "kind", "values"), CHANGED)
def test_a_changed_kind_of_record_is_found(level, check, says, kind, values):
    run = recorded.run()
    for_both(run, kind, **values)
    assert_found(run, level, check, says)


@pytest.mark.parametrize(("labels", "found"), [([5, 5], True), ([5, 6], False)], ids=["one dataset", "one per rank"])
def test_labels_tell_whether_the_same_indices_are_the_same_samples(labels, found):
    """Noise makes all samples different, and each rank loads all indices."""
    run = recorded.run()
    for number, rank in enumerate(run.ranks):
        for epoch in rank.of(EpochRecord):
            epoch.distributed = None
        for step in rank.steps.values():
            step.drew_data = ["torch"]
        values = [[index % labels[number]] for index in range(40)]
        rank.first(IndicesRecord).values = list(range(40))
        rank.records.append(LabelsRecord(loader=0, epoch=1, values=values))
    says = [each.seen for each in checks.examine(run) if each.check == "batches"]
    assert says[0].startswith("100% of the samples that rank 0 saw") is found


def test_the_speed_counts_what_the_script_calls_and_leaves_waiting_to_the_straggler():
    run = recorded.run()
    for step in steps_of(run):
        step.collectives = {
            "all_gather forward": CollectiveCalls(1, 8, 0.03),
            "all_reduce between": CollectiveCalls(1, 8, 0.01),
        }
    [speed] = [each for each in checks.examine(run) if each.check == "speed"]
    assert speed.seen.endswith("of a step: 1% loading, 11% in collectives that the script calls")


def test_a_rank_that_gloo_aborts_after_its_work_is_no_fault():
    run = recorded.run()
    run.how = "failed"
    run.last_lines = ["traceback : Signal 6 (SIGABRT) received by PID 28411"]
    assert worst(checks.examine(run)) == "ok"
    for rank in run.ranks:
        leave_out(rank, EndRecord)
    assert worst(checks.examine(run)) == "wrong"


def test_an_abort_names_its_reason_and_where_each_rank_was():
    run = recorded.run()
    run.how = "failed"
    run.last_lines = [
        "  what():  [enforce fail] 1732 vs 4. Received data size doesn't match expected size.",
        "traceback",
    ]
    for number, rank in enumerate(run.ranks):
        leave_out(rank, EndRecord)
        rank.records.append(CollectiveRecord(step=3, name="all_reduce", line=f"train.py:{number}"))
    [ended] = [each for each in checks.examine(run) if each.check == "ended"]
    assert ended.seen.startswith("a rank aborted: [enforce fail] 1732 vs 4.")
    assert "rank 1 had called all_reduce at train.py:1" in ended.seen and "different ones" in ended.why


def test_a_script_that_only_ends_badly_is_worth_a_look():
    run = Run([RankLog([StartRecord(pid=0, main_thread=0), EndRecord()]) for _ in range(2)], "failed")
    [finding] = checks.examine(run)
    assert finding.level == "look" and "no step of an optimizer was seen" in finding.seen


def test_less_than_a_batch_may_be_padded_where_a_library_chooses_the_batches():
    run = recorded.run()
    for_both(run, EpochRecord, batch=None)
    for record in records_of(run, IndicesRecord, 1):
        record.values[:3] = [0, 2, 4]  # rank 0 loads them too
    assert "ok" in [each.level for each in checks.examine(run) if each.check == "coverage"]


@pytest.mark.parametrize("divided", ["by layers", "in a mesh"])
def test_ranks_that_share_a_model_are_not_compared(divided):
    run = recorded.run()
    same_batches(run)
    for rank in run.ranks:
        rank.model.ddp = False
        rank.records.remove(rank.first(DdpRecord))
        if divided == "by layers":
            rank.steps[1].collectives = {"send between": CollectiveCalls(1, 8)}
        else:
            rank.model.meshes = [[1, 2]]
    assert worst(checks.examine(run)) == "ok"


def level(run: Run, check: str) -> list[str]:
    return [each.level for each in checks.examine(run) if each.check == check]


@pytest.mark.parametrize(("name", "levels"), [("send between", ["ok"]), ("all_reduce between", ["look"])])
def test_ranks_with_their_own_layers_are_right_if_they_send_each_other_something(name, levels):
    run = recorded.run()
    run.ranks[1].model.parameters = [ParameterRecord("other.weight", [2], True, False)]
    run.ranks[0].steps[1].collectives = {name: CollectiveCalls(1, 8)}
    assert level(run, "weights") == levels


@pytest.mark.parametrize(("name", "levels"), [("all_reduce between", ["ok"]), ("broadcast between", ["look"])])
def test_ranks_that_are_equal_again_after_an_average_are_right(name, levels):
    """The average is the last thing that the script does, after its last step."""
    run = recorded.run()
    equal_at_the_end(run)
    records_of(run, EndRecord, 0)[0].collectives = {name: CollectiveCalls(1, 16)}
    assert level(run, "weights") == levels


def test_threads_are_counted_against_cores():
    run = recorded.run()
    for step in steps_of(run):
        step.threads = 4
    [finding] = machine.threads(run, cores=4)
    assert finding.level == "look" and "2 ranks with 4 threads each share 4 cores" in finding.seen
    [finding] = machine.threads(run, cores=8)
    assert finding.level == "ok"


def test_an_unfinished_line_is_left_out(tmp_path):
    path = tmp_path / "rank.0.jsonl"
    path.write_text('{"kind": "group", "step": 0, "size": 2}\n{"kind": "st')
    assert read_records(path) == [GroupRecord(size=2)]


def test_sections_are_in_the_notebooks():
    sources = {source.stem: source.read_text() for source in generate.sources()}
    for notebook, heading in SECTIONS.values():
        headings = [line for line in sources[notebook].splitlines() if line.startswith("# #")]
        assert any(line.endswith(heading) for line in headings), f"{notebook} has no section {heading!r}"


def constants(node: ast.AST) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def test_each_finding_in_the_table_is_made_by_a_check_and_each_that_is_made_is_in_the_table():
    named, chosen = set(), set()
    for source in Path(checks.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "found":
                [first, *_] = node.args
                (named if isinstance(first, ast.Constant) else chosen).update(constants(first))
            elif isinstance(node, ast.Assign | ast.Return) and node.value is not None:
                chosen |= constants(node.value)
    assert named <= TABLE.keys() <= named | chosen


@pytest.mark.parametrize("name", TABLE)
def test_each_finding_in_the_table_can_be_shown(name):
    row = TABLE[name]
    texts = row.get("why", "") + row.get("remedy", "")
    words = {word: "7" for _, word, *_ in string.Formatter().parse(texts) if word}
    finding = found(name, "seen", **words)
    assert f"{row['check']}: seen" in as_text([finding], SECTIONS) and finding.level in LEVELS


def test_a_report_has_why_what_to_change_and_where_to_read():
    finding = Finding("wrong", "batches", "seen", "because", "change this", "sampler", (0, 1), 3)
    text = as_text([finding, Finding("ok", "weights", "equal")], SECTIONS)
    assert text.index("wrong  batches: seen") < text.index("why: because") < text.index("→ change this")
    assert "more: 05_ddp, “Who sees which sample?”" in text and text.endswith("1 wrong, 0 to look at, 1 ok")
    assert as_data([finding], SECTIONS)[0]["section"]["notebook"] == "05_ddp"
    assert worst([]) == LEVELS[0]
