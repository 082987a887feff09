"""Sliders over the steps that 05_ddp has run at several bandwidths, with several sizes of DDP's buckets."""

from collections.abc import Mapping, Sequence

import ipywidgets as widgets

from workshop_lib.notebook.figures import RecordFigure
from workshop_lib.notebook.widgets import Answers, size

from lessons.ddp import figures


class OverlapSliders(Answers):
    """Sliders for bandwidth and way to average. The figure shows this way's step below that of the first way."""

    def __init__(self, by_rank: Sequence[Mapping[float, Sequence]], emulated_on: str):
        self.by_rank = by_rank
        self.emulated_on = emulated_on
        self.saved = figures.saved_percent(by_rank)
        self.plain, *ways = by_rank[0][next(iter(self.saved))][0]
        wide = {"layout": widgets.Layout(width=size(32)), "style": {"description_width": size(7)}}
        bandwidths = [(f"{gb_per_s:g} GB/s", gb_per_s) for gb_per_s in self.saved]
        self.bandwidth = widgets.SelectionSlider(options=bandwidths, value=1, description="network", **wide)
        self.way = widgets.SelectionSlider(options=ways, value="DDP, 4 MiB", description="averaging", **wide)
        super().__init__([[self.bandwidth, self.way]], "workshop-overlap")

    def answer(self) -> tuple[str, RecordFigure]:
        gb_per_s, way = self.bandwidth.value, self.way.value
        sentence = f"{way}, at {gb_per_s:g} GB/s: saves {self.saved[gb_per_s][way]:.0f} %"
        step = self.by_rank[0][gb_per_s][0]
        return sentence, figures.overlap({self.plain: [step[self.plain]], sentence: [step[way]]}, self.emulated_on)


def overlap(by_rank: Sequence[Mapping[float, Sequence]], emulated_on: str) -> OverlapSliders:
    """Create sliders over by_rank[rank][GB/s][turn][title], which `backward.compare` measured on emulated ranks."""
    return OverlapSliders(by_rank, emulated_on)
