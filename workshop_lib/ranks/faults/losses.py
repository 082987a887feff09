"""What to say when a rank has ended: which one, how, and where all ranks were."""

from typing import Any

from workshop_lib.ranks.call.messages import Frame, Loss, StopNote

from .rank_errors import HOLD_AGAIN, RankError, grouped, how_it_ended, named, positions_text, stopped_text, where

ERRORS_SHOWN = 3  # a message about a hundred ranks has to fit a screen


def after_a_loss(team: Any, loss: Loss, stopped: dict[int, StopNote]) -> RankError:
    """Give up the ranks of `team` (cluster.Ranks) after one has ended; return the error to raise."""
    remedy = f"MPI ends all ranks when one is lost. {team.remedy}"
    what = _what_ended(loss)
    team.give_up(what)
    text = f"{what}.{_last_words(team, loss, stopped)}"
    if loss.holder_ended:
        remedy = HOLD_AGAIN
    elif loss.lost_hosts:
        remedy += f" If {' and '.join(loss.lost_hosts)} stays away, leave this job and start a new one."
    error = RankError(f"{text}\n{remedy}")
    error.what = text
    return error


def _what_ended(loss: Loss) -> str:
    if loss.holder_ended:
        return f"the ranks are gone: the process that held them on {loss.holder}, or its job, has ended"
    if loss.lost_hosts:
        lost = " and ".join(f"{host} was lost with {named(ranks)}" for host, ranks in loss.lost_hosts.items())
        return f"{lost}: the node, its network or the job's processes there are gone"
    if loss.records:
        first = loss.records[0]
        return f"rank {first['rank']} on {first['host']} {how_it_ended(first)}"
    return "the ranks are gone: their mpiexec or controller ended"


def _last_words(team: Any, loss: Loss, stopped: dict[int, StopNote]) -> str:
    """Where the lost rank was, which errors the others had raised by then, and where the rest were."""
    if not loss.records:
        return ""
    lost = None if loss.lost_hosts else loss.records[0]["rank"]
    text = f"\n  It was {where(loss.stacks[lost])}" if lost in loss.stacks else ""
    raised = {rank: f"{error['what']} {where(error['frames'][::-1])}" for rank, error in loss.errors.items()}
    rows = [f"  {named(ranks)} {words}" for ranks, words in grouped(raised)[:ERRORS_SHOWN]]
    rest = {rank: frames for rank, frames in loss.stacks.items() if rank != lost and rank not in loss.errors}
    if rest:
        rows.append(places(team, rest, stopped))
    return "\n".join([text, "Meanwhile:", *rows]) if rows else text


def places(team: Any, stacks: dict[int, list[Frame]], stopped: dict[int, StopNote], still: str = "") -> str:
    """Where these ranks are, as lines for a message; the place of each one stays in `team.positions`."""
    notes = {rank: stopped_text(note) for rank, note in stopped.items()}
    team.positions = {rank: notes.get(rank) or where(frames) for rank, frames in stacks.items()}
    return positions_text(team.positions, still)
