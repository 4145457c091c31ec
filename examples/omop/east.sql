-- One row per patient: the first admission with heart failure. German names, local diagnoses, creatinine in mg/dL.
with admission as (
  select visit.person_id, min(visit.visit_start_date) as day
  from visit_occurrence as visit join condition_occurrence as condition using (visit_occurrence_id)
  where visit.visit_concept_id = 9201 and condition.condition_source_value = 'HI'
  group by visit.person_id
),
latest as (  -- the last value of each kind, from a month before admission to the day after
  select person_id, measurement_source_value as code, value_as_number as number, value_source_value as text,
    row_number() over (partition by person_id, measurement_source_value order by measurement_date desc) as place
  from admission join measurement using (person_id)
  where measurement_date between date(day, '-30 days') and date(day, '+1 day')
),
measured as (
  select person_id,
    max(case code when 'NYHA' then text end) as nyha,
    max(case code when 'EF' then number end) as ef,
    max(case code when 'KREA' then number end) as kreatinin,
    max(case code when 'ALBUMIN' then number end) as albumin
  from latest where place = 1 group by person_id
),
followed as (  -- days from admission to death, or to the end of observation; at least half a day
  select person_id, day, death_date,
    max(julianday(coalesce(death_date, observation_period_end_date)) - julianday(day), 0.5) as days
  from admission join observation_period using (person_id) left join death using (person_id)
)
select
  cast(strftime('%Y', day) as integer) - year_of_birth as alter_jahre,
  gender_concept_id as geschlecht,
  measured.nyha, measured.ef, measured.kreatinin, measured.albumin,
  exists (
    select 1 from condition_occurrence as condition
    where condition.person_id = person.person_id and condition_source_value = 'DM'
      and condition_start_date <= day
  ) or exists (
    select 1 from drug_exposure as drug
    where drug.person_id = person.person_id and drug_source_value like 'A10%' and drug_exposure_start_date <= day
  ) as diabetes,
  (
    select count(*) from visit_occurrence as visit
    where visit.person_id = person.person_id and visit_concept_id = 9201
      and visit_start_date < day and visit_start_date >= date(day, '-365 days')
  ) as vorherige,
  days as time,
  case when death_date is not null then days end as until
from followed join person using (person_id) left join measured using (person_id)
order by person_id
