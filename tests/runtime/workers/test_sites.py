"""A site whose file names workers: over the network, as any other site."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest
from dask_rows import networked, table, terms
from sites import consortium

import fedboost as fb
from fedboost.runtime.site.config import WorkersConfig

pytestmark = pytest.mark.filterwarnings("ignore::fedboost.errors.TableWarning")


def as_parquet(folder, frame, parts):
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
        frame.iloc[rows].to_parquet(folder / f"part-{number:03}.parquet", row_group_size=37)


def as_csv(folder, frame, parts):
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), parts)):
        frame.iloc[rows].to_csv(folder / f"part-{number:03}.csv", index=False)


def trained(tmp_path, agreed, workers, write=as_parquet, parts=3):
    """The model of two sites, one of which has workers."""
    rows, other = table(), table(150, seed=1)
    folder = tmp_path / "rows"
    folder.mkdir()
    write(folder, rows, parts)

    async def train():
        async with consortium(tmp_path, {}) as one:
            cluster = WorkersConfig(dask=networked(workers).scheduler.address)
            one.start_party("north", folder, state="north", workers=cluster)
            one.start_party("south", pa.Table.from_pandas(other), state="south")
            return (await one.train(agreed)).model

    return asyncio.run(train()).booster, fb.simulate(agreed, {"north": rows, "south": other}).model.booster


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "write"), [(1, as_csv), (2, as_parquet), (7, as_csv)])
def test_a_folder_of_files_gives_the_model_of_one_machine(tmp_path, workers, write):
    agreed = terms(parties=["north", "south"], subsample=0.5, validation_fraction=0.2)
    model, expected = trained(tmp_path, agreed, workers, write)
    assert model == expected
