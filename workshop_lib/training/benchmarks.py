"""`python -m workshop_lib.training.benchmarks`: the name that users know for what 08c_forecasting measures with."""

import runpy

if __name__ == "__main__":
    runpy.run_module("workshop_lib.lessons.forecasting.benchmarks", run_name="__main__", alter_sys=True)
