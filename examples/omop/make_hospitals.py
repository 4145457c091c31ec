"""Write the databases of five invented hospitals, in the shape of the OMOP common data model 5.4.

Run: python make_hospitals.py FOLDER

Tables have OMOP's names, and the columns that the example needs. Patients are drawn at random. Concept ids
are OMOP's for sex (8507, 8532) and inpatient visits (9201). Others are 0, with a code of the hospital in the
column `..._source_value`.
"""

import sqlite3
import sys
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import numpy as np

SCHEMA = """
create table person (person_id integer primary key, gender_concept_id integer, year_of_birth integer,
  month_of_birth integer, person_source_value text, gender_source_value text);
create table observation_period (observation_period_id integer primary key, person_id integer,
  observation_period_start_date text, observation_period_end_date text);
create table visit_occurrence (visit_occurrence_id integer primary key, person_id integer,
  visit_concept_id integer, visit_start_date text, visit_end_date text);
create table condition_occurrence (condition_occurrence_id integer primary key, person_id integer,
  condition_concept_id integer, condition_start_date text, condition_source_value text,
  visit_occurrence_id integer);
create table measurement (measurement_id integer primary key, person_id integer,
  measurement_concept_id integer, measurement_date text, value_as_number real,
  measurement_source_value text, value_source_value text, unit_source_value text);
create table drug_exposure (drug_exposure_id integer primary key, person_id integer, drug_concept_id integer,
  drug_exposure_start_date text, drug_exposure_end_date text, drug_source_value text);
create table death (person_id integer primary key, death_date text);
"""
MALE, FEMALE, INPATIENT = 8507, 8532, 9201
CLASSES = ("I", "II", "III", "IV")  # of the New York Heart Association
FIRST, LAST = date(2015, 1, 1), date(2022, 12, 31)


@dataclass(frozen=True)
class Hospital:
    """What one hospital records, and how. Values are those of g/L, umol/L and percent times `units`."""

    patients: int
    age: float  # mean, in years
    codes: dict[str, str]
    units: dict[str, float] = field(default_factory=dict)
    classes: tuple[str, ...] = CLASSES
    views: str = ""


ICD = {"failure": "I50.9", "diabetes": "E11.9"}
HOSPITALS = {
    "north": Hospital(
        1400, 74, {**ICD, "ef": "LVEF", "creatinine": "CREA", "albumin": "ALB", "nyha": "NYHA"}
    ),
    "south": Hospital(
        900,
        70,
        {**ICD, "ef": "ECHO-EF", "creatinine": "CR-S", "albumin": "ALB-S", "nyha": "NYHA"},
        {"albumin": 0.1},  # g/dL
        views="create view patient_sex as select person_id, gender_source_value as sex from person;",
    ),
    "east": Hospital(
        1100,
        76,
        {
            "failure": "HI",
            "diabetes": "DM",
            "ef": "EF",
            "creatinine": "KREA",
            "albumin": "ALBUMIN",
            "nyha": "NYHA",
        },
        {"creatinine": 1 / 88.42},  # mg/dL
        ("NYHA1", "NYHA2", "NYHA3", "NYHA4"),
    ),
    "west": Hospital(650, 72, {**ICD, "ef": "EJF", "creatinine": "CREAT", "nyha": "NYHA-CLASS"}),
    "central": Hospital(
        1000,
        68,
        {**ICD, "ef": "LVEF-FRAC", "creatinine": "CREA", "albumin": "ALB", "nyha": "HF-CLASS"},
        {"ef": 0.01},  # a fraction
        ("1", "2", "3", "4"),
    ),
}


class Writer:
    """Writes rows to a database, with ids that count up."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.database = sqlite3.connect(path)
        self.database.executescript(SCHEMA)
        self.last: dict[str, int] = {}

    def add(self, table: str, *values: object) -> int:
        number = self.last[table] = self.last.get(table, 0) + 1
        row = (number, *(str(value) if isinstance(value, date) else value for value in values))
        self.database.execute(f"insert into {table} values ({', '.join('?' * len(row))})", row)
        return number


def write(path: Path, hospital: Hospital, seed: int) -> None:
    """Draw the patients of a hospital, and write its database."""
    draw, out = np.random.default_rng(seed), Writer(path)
    for person in range(1, hospital.patients + 1):
        write_patient(out, draw, hospital, person)
    out.database.executescript(hospital.views)
    out.database.commit()
    out.database.close()


def write_patient(out: Writer, draw: np.random.Generator, hospital: Hospital, person: int) -> None:
    """Draw one patient: nine of ten are admitted with heart failure, the others for another reason."""
    failing, male = bool(draw.random() < 0.9), bool(draw.random() < 0.56)
    index = FIRST + timedelta(days=int(draw.integers(500, 2400)))
    age = float(np.clip(draw.normal(hospital.age, 11), 30, 97))
    nyha = int(draw.choice(4, p=[0.08, 0.36, 0.4, 0.16]))
    values = {
        "ef": float(np.clip(draw.normal(42 - 3 * nyha, 12), 10, 70)),
        "creatinine": float(np.exp(draw.normal(4.55 + 0.006 * (age - 70) + 0.08 * nyha, 0.35))),
        "albumin": float(np.clip(draw.normal(40 - 0.08 * (age - 70) - 1.1 * nyha, 4), 18, 52)),
    }
    diabetic = bool(draw.random() < 0.34)
    earlier = int(draw.poisson(0.5 + 0.35 * nyha))
    risk = (
        0.045 * (age - 72)
        + 0.42 * (nyha - 1.6)
        + 0.5 * max(0.0, (45 - values["ef"]) / 15)  # a normal ejection fraction adds nothing
        + 0.8 * (np.log(values["creatinine"]) - 4.6)
        - 0.08 * (values["albumin"] - 39)
        + 0.25 * diabetic * (age < 75)  # an interaction
        + 0.18 * min(earlier, 4)
        + 0.15 * male
    )
    survived = int(3600 * draw.weibull(0.85) * np.exp(-(risk if failing else -1.0) / 0.85 * 0.9))
    end = min(LAST, index + timedelta(days=int(draw.exponential(4500))))
    died = index + timedelta(days=survived) <= end

    born = index - timedelta(days=int(age * 365.25))
    sex = (MALE, "M") if male else (FEMALE, "F")
    out.add("person", sex[0], born.year, born.month, f"P{person:05}", sex[1])
    if died:
        end = index + timedelta(days=survived)
        out.database.execute("insert into death values (?, ?)", (person, str(end)))
    out.add("observation_period", person, FIRST, end)
    for _ in range(earlier):
        write_visit(out, person, index - timedelta(days=int(draw.integers(20, 365))), 6, "Z03", end)
    visit = write_visit(out, person, index, int(draw.integers(3, 15)), "I10", end)
    codes = hospital.codes
    if failing:
        out.add("condition_occurrence", person, 0, index, codes["failure"], visit)
    if diabetic and draw.random() < 0.85:
        since = index - timedelta(days=int(draw.integers(1, 400)))
        out.add("condition_occurrence", person, 0, since, codes["diabetes"], None)
    if diabetic:
        out.add("drug_exposure", person, 0, index - timedelta(days=30), index, "A10BA02")
    out.add("drug_exposure", person, 0, index, end, "C03CA01")

    for name, value in values.items():
        if (
            name in codes and draw.random() < 0.93
        ):  # an old, the relevant and, if there is time, a later value
            days = [-int(draw.integers(200, 500)), int(draw.integers(0, 2)), int(draw.integers(30, 200))]
            for moved, day in zip((0.9, 1.0, 1.1), days, strict=True):
                seen, number = index + timedelta(days=day), value * moved * hospital.units.get(name, 1.0)
                if seen <= end:
                    out.add("measurement", person, 0, seen, round(number, 3), codes[name], None, None)
    if draw.random() < 0.9:
        out.add("measurement", person, 0, index, None, codes["nyha"], hospital.classes[nyha], None)


def write_visit(out: Writer, person: int, start: date, days: int, reason: str, end: date) -> int:
    """Add a stay in hospital, with a diagnosis."""
    visit = out.add("visit_occurrence", person, INPATIENT, start, min(start + timedelta(days=days), end))
    out.add("condition_occurrence", person, 0, start, reason, visit)
    return visit


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, hospital) in enumerate(HOSPITALS.items()):
        write(folder / f"{name}.db", hospital, seed)
        print(f"{folder / name}.db: {hospital.patients} patients")
