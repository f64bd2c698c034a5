//! All samples of a plan as Parquet: one row for each engine, design, seed and quantity.

use super::PlanError;
use super::answer::Answer;
use super::performance::{LATENCY_NAMES, Latency};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::io::Write;
use std::sync::Arc;

/// `point` counts the designs of `summary.json`; -1 is everything local. `pod_machines` is there
/// because everything local is simulated for each size of a pod.
const SCHEMA: &str = "message samples {
    required binary engine (STRING);
    required int32 point;
    required int32 pod_machines;
    required int64 seed (INTEGER(64, false));
    required binary quantity (STRING);
    required double value;
}";

struct SampleRow {
    engine: &'static str,
    point: i32,
    pod_machines: u16,
    seed: u64,
    quantity: &'static str,
    value: f64,
}

fn rows(answer: &Answer) -> Vec<SampleRow> {
    let mut rows = Vec::new();
    let mut add = |engine, (point, pod_machines), index: usize, quantity, value| {
        let seed = answer.seeds[index];
        rows.push(SampleRow { engine, point, pod_machines, seed, quantity, value });
    };
    let baseline = &answer.baseline;
    for (index, stranded) in baseline.stranded_by_seed.iter().enumerate() {
        add("capacity", (-1, 0), index, "stranded_percent", *stranded);
        let right = baseline.right_by_seed[index] as f64;
        add("capacity", (-1, 0), index, "machine_mib", right);
    }
    let latencies = |place: (i32, u16), by_seed: &[Latency], add: &mut Add<'_>| {
        for (index, latency) in by_seed.iter().enumerate() {
            for (name, value) in LATENCY_NAMES.iter().zip(latency.values()) {
                add("performance", place, index, name, value);
            }
        }
    };
    for (pod, by_seed) in &baseline.latency_by_seed {
        latencies((-1, *pod), by_seed, &mut add);
    }
    for (number, point) in answer.points.iter().enumerate() {
        let place = (number as i32, point.design.pod_machines);
        let by_seed = &point.by_seed;
        for index in 0..answer.seeds.len() {
            add("capacity", place, index, "pool_mib", by_seed.pool_mib[index] as f64);
            add("capacity", place, index, "over_percent", by_seed.over_percent[index]);
            add("cost", place, index, "saving_percent", by_seed.saving_percent[index]);
        }
        latencies(place, &by_seed.latency, &mut add);
    }
    rows
}

type Add<'a> = dyn FnMut(&'static str, (i32, u16), usize, &'static str, f64) + 'a;

/// Writes the samples; `pairs` are kept with the file.
///
/// # Errors
/// The system's.
pub fn write(
    answer: &Answer,
    pairs: &[(&str, String)],
    to: impl Write + Send,
) -> Result<(), PlanError> {
    write_rows(&rows(answer), pairs, to).map_err(|error| PlanError::Samples(error.to_string()))
}

fn write_rows(
    rows: &[SampleRow],
    pairs: &[(&str, String)],
    to: impl Write + Send,
) -> Result<(), ParquetError> {
    let pair =
        |(key, value): &(&str, String)| KeyValue::new(format!("rackpool.{key}"), value.clone());
    let properties = WriterProperties::builder()
        .set_created_by("rackpool".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_key_value_metadata(Some(pairs.iter().map(pair).collect()));
    let schema = Arc::new(parse_message_type(SCHEMA).expect("the schema is well formed"));
    let mut file = SerializedFileWriter::new(to, schema, Arc::new(properties.build()))?;
    let mut group = file.next_row_group()?;
    let text = |word: &str| ByteArray::from(word.as_bytes().to_vec());
    column::<ByteArrayType, _>(&mut group, rows, |row| text(row.engine))?;
    column::<Int32Type, _>(&mut group, rows, |row| row.point)?;
    column::<Int32Type, _>(&mut group, rows, |row| row.pod_machines.into())?;
    column::<Int64Type, _>(&mut group, rows, |row| row.seed.cast_signed())?;
    column::<ByteArrayType, _>(&mut group, rows, |row| text(row.quantity))?;
    column::<DoubleType, _>(&mut group, rows, |row| row.value)?;
    group.close()?;
    file.close().map(drop)
}

fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[SampleRow],
    value: impl Fn(&SampleRow) -> T::T,
) -> Result<(), ParquetError> {
    let mut writer = group.next_column()?.expect("the schema has these columns");
    let values: Vec<T::T> = rows.iter().map(value).collect();
    writer.typed::<T>().write_batch(&values, None, None)?;
    writer.close()
}
