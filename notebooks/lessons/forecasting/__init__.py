"""What 08c_forecasting uses, besides what many notebooks import from workshop_lib."""

from workshop_lib.faces import face

__getattr__, __dir__ = face(
    __name__,
    check=".judge",
    catalogue="workshop_lib.machine.catalogue",
    conditions="workshop_lib.forecast.report:conditions",
    figures="workshop_lib.forecast.figures",
    fit=".fit",
    forecast="workshop_lib.forecast.forecast",
    load="workshop_lib.machine.load",
    published="workshop_lib.forecast.published",
    slowest_of="workshop_lib.machine.cost_model:slowest_of",
)
