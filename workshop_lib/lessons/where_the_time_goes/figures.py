"""Draw what bounds each layer, memory or arithmetic: the roofline that 08b_where_the_time_goes ends with."""

from collections.abc import Sequence

import numpy as np

from workshop_lib.errors import InputError
from workshop_lib.notebook import figures, palette
from workshop_lib.training.flops import Layer, Limits


@figures.styled
def roofline(limits: Limits, layers: Sequence[Layer]) -> figures.RecordFigure:
    """Draw each layer's rate [Gflop/s] against its arithmetic intensity [flop/byte], under this machine's roof.

    Raises InputError if there are no layers.
    """
    if not layers:
        raise InputError("there are no layers to draw; give those of at least one network.")
    caption = (
        f"one process, fp32, forward; memory {limits.bytes_per_s / 1e9:.1f} GB/s, "
        f"matrix products {limits.flops_per_s / 1e9:.0f} Gflop/s, both measured"
    )
    figure, axes = figures.new_figure("What bounds each layer", caption)
    intensity = np.array([layer.flops / layer.moved_bytes for layer in layers])
    rate = np.array([layer.flops / layer.seconds for layer in layers]) / 1e9
    for network in dict.fromkeys(layer.network for layer in layers):
        mine = [layer.network == network for layer in layers]
        axes.plot(intensity[mine], rate[mine], linestyle="", markersize=10, zorder=3, label=network)
    for number, (layer, x, y) in enumerate(zip(layers, intensity, rate, strict=True)):
        offset = (4, -20 if number % 2 else 10)  # labels of neighboring layers alternate above and below
        axes.annotate(layer.layer, (x, y), offset, textcoords="offset points", fontsize=figures.SMALL)
    ridge = limits.flops_per_s / limits.bytes_per_s
    ends = np.array([min(*intensity, ridge) / 3, ridge, max(*intensity, ridge) * 4])
    roof = np.minimum(ends * limits.bytes_per_s, limits.flops_per_s) / 1e9
    solid = {"color": palette.INK, "linestyle": "-", "marker": "", "linewidth": 2.5}
    axes.plot(ends, roof, **solid, label="roof: what memory and arithmetic allow")
    axes.axvline(ridge, **figures.LEVEL)
    low = min(*rate, roof[0]) / 2
    axes.text(ridge / 1.08, low * 1.15, "waits for memory", ha="right", color=palette.GRAY)
    axes.text(ridge * 1.08, low * 1.15, "waits for arithmetic", color=palette.GRAY)
    axes.set(xscale="log", yscale="log", xlim=(ends[0], ends[-1]), ylim=(low, 1.7 * max(*rate, roof[-1])))
    axes.set(xlabel="arithmetic intensity: floating-point operations per byte moved", ylabel="Gflop/s")
    figures.log_ticks(axes.xaxis)
    figures.log_ticks(axes.yaxis)
    return figure
