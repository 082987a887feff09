"""The benchmarks of 08c_forecasting, under the name that users know: `python -m workshop_lib.training.benchmarks`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("workshop_lib.lessons.forecasting.benchmarks", run_name="__main__", alter_sys=True)
