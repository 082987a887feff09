"""Emulated devices and links under real code: a clock of emulated time on every rank. On ranks that emulate a machine:

    from workshop_lib.machine import emulation

    emulation.current().set_network(1e9)                   # bytes per second between nodes, from now on
    emulation.takes(layer, forward_s=2e-3, backward_s=4e-3)   # a layer of a network takes this long

`ranks.start(2, machine="ethernet-10g")` starts such ranks. Nothing else has to change: the ranks run the same mpi4py
and PyTorch code, and `time.perf_counter` is the emulated time.
"""

import importlib

_PLACES = {"current": "session", "start": "session", "stop": "session", "takes": "device"}
__all__ = ["current", "start", "stop", "takes"]


def __getattr__(name: str):
    """Import a name when it is first used, because `takes` needs PyTorch."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
