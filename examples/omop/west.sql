-- One row per patient: the first admission with heart failure. Albumin is not recorded.
with admission as (
  select visit.person_id, min(visit.visit_start_date) as day
  from visit_occurrence as visit join condition_occurrence as condition using (visit_occurrence_id)
  where visit.visit_concept_id = 9201 and condition.condition_source_value = 'I50.9'
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
    max(case code when 'NYHA-CLASS' then text end) as nyha,
    max(case code when 'EJF' then number end) as ef,
    max(case code when 'CREAT' then number end) as creatinine
  from latest where place = 1 group by person_id
),
followed as (  -- days from admission to death, or to the end of observation; at least half a day
  select person_id, day, death_date,
    max(julianday(coalesce(death_date, observation_period_end_date)) - julianday(day), 0.5) as days
  from admission join observation_period using (person_id) left join death using (person_id)
)
select
  cast(strftime('%Y', day) as integer) - year_of_birth as age,
  case gender_concept_id when 8507 then 'male' when 8532 then 'female' end as sex,
  measured.nyha, measured.ef, measured.creatinine,
  exists (
    select 1 from condition_occurrence as condition
    where condition.person_id = person.person_id and condition_source_value = 'E11.9'
      and condition_start_date <= day
  ) or exists (
    select 1 from drug_exposure as drug
    where drug.person_id = person.person_id and drug_source_value like 'A10%' and drug_exposure_start_date <= day
  ) as diabetes,
  (
    select count(*) from visit_occurrence as visit
    where visit.person_id = person.person_id and visit_concept_id = 9201
      and visit_start_date < day and visit_start_date >= date(day, '-365 days')
  ) as prior_admissions,
  days as time,
  case when death_date is not null then days end as until
from followed join person using (person_id) left join measured using (person_id)
order by person_id
