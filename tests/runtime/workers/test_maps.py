"""Rows on workers of a site with other names and units, which lacks a column."""

import asyncio

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask_rows import FEATURES, SMALL, networked, table
from sites import consortium

import fedboost as fb
from fedboost.runtime.site.config import WorkersConfig

pytestmark = pytest.mark.filterwarnings("ignore::fedboost.errors.TableWarning")
MAPS = {
    "age": {"name": "AGE_M", "factor": 0.08333333333333333},
    "ward": {"name": "station", "levels": {"1": "a", "2": "b"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_workers_read_the_rows_as_one_machine_does(tmp_path, form):
    columns = {"label": "benign", **FEATURES, "absent": {"north": ["dose"]}}
    agreed = fb.Terms.read({"columns": columns, **SMALL, "parties": ["north", "south", "east"]})
    rows, others = table(), {"south": table(150, seed=1), "east": table(90, seed=2)}
    ward = rows["ward"].map({"a": "1", "b": "2"}).fillna(rows["ward"])
    foreign = pd.DataFrame({"AGE_M": np.round(rows["age"] * 12), "station": ward, "benign": rows["benign"]})
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(foreign)), 3)):
        write = getattr(foreign.iloc[part], f"to_{form}")
        write(folder / f"part-{number}.{form}", index=False)

    async def train():
        async with consortium(tmp_path, {}) as one:
            cluster = WorkersConfig(dask=networked(2).scheduler.address)
            one.start_party("north", folder, state="north", workers=cluster, columns=MAPS)
            for name, frame in others.items():
                one.start_party(name, pa.Table.from_pandas(frame), state=name)
            return (await one.train(agreed)).model

    harmonised = rows.assign(age=np.round(rows["age"] * 12) * 0.08333333333333333, dose=np.nan)
    expected = fb.simulate(agreed.among(()), {"north": harmonised, **others}).model
    assert asyncio.run(train()).booster == expected.booster
