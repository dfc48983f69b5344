//! Figures as Arrow tables: columns in memory that others take without a copy, by the Arrow PyCapsule interface.

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use serde_json::{Map, Value};

use crate::error;

/// A table.
#[pyclass(frozen, module = "remora")]
pub struct ArrowTable(RecordBatch);

impl ArrowTable {
    /// Of rows that are JSON objects. Objects in them become columns by path (`in_flight_1_p50_ns`), lists text.
    pub fn of(rows: impl IntoIterator<Item = Value>) -> PyResult<Self> {
        let rows: Vec<Map<String, Value>> = rows.into_iter().map(flat).collect();
        let mut names: Vec<&String> = Vec::new();
        for row in &rows {
            for name in row.keys().filter(|name| !names.contains(name)).collect::<Vec<_>>() {
                names.push(name);
            }
        }
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for name in names {
            let cells: Vec<&Value> = rows.iter().map(|row| row.get(name).unwrap_or(&Value::Null)).collect();
            let column = column(&cells);
            fields.push(Field::new(name, column.data_type().clone(), true));
            columns.push(column);
        }
        let batch = match columns.is_empty() {
            true => Ok(RecordBatch::new_empty(Arc::new(Schema::empty()))),
            false => RecordBatch::try_new(Arc::new(Schema::new(fields)), columns),
        };
        Ok(Self(batch.map_err(error::failed)?))
    }
}

fn flat(row: Value) -> Map<String, Value> {
    let mut out = Map::new();
    let Value::Object(fields) = row else { return out };
    for (name, value) in fields {
        match value {
            Value::Object(_) => {
                out.extend(flat(value).into_iter().map(|(inner, value)| (format!("{name}_{inner}"), value)));
            }
            Value::Array(_) => drop(out.insert(name, Value::String(value.to_string()))),
            plain => drop(out.insert(name, plain)),
        }
    }
    out
}

fn column(cells: &[&Value]) -> ArrayRef {
    let known = || cells.iter().filter(|cell| !cell.is_null());
    match () {
        () if known().next().is_some() && known().all(|cell| cell.is_boolean()) => {
            Arc::new(cells.iter().map(|cell| cell.as_bool()).collect::<BooleanArray>())
        }
        () if known().next().is_some() && known().all(|cell| cell.as_i64().is_some()) => {
            Arc::new(cells.iter().map(|cell| cell.as_i64()).collect::<Int64Array>())
        }
        () if known().next().is_some() && known().all(|cell| cell.is_number()) => {
            Arc::new(cells.iter().map(|cell| cell.as_f64()).collect::<Float64Array>())
        }
        () => {
            let text = |cell: &&Value| match cell {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            };
            Arc::new(cells.iter().map(text).collect::<StringArray>())
        }
    }
}

#[pymethods]
impl ArrowTable {
    /// The names of its columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.0.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    fn __repr__(&self) -> String {
        format!("<remora.ArrowTable of {} rows: {}>", self.0.num_rows(), self.columns().join(", "))
    }

    /// Columns as lists, for programs without a library of tables.
    fn to_pydict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (field, column) in self.0.schema().fields().iter().zip(self.0.columns()) {
            let any = column.as_any();
            match field.data_type() {
                DataType::Boolean => {
                    let cells = any.downcast_ref::<BooleanArray>().map(|cells| cells.iter().collect::<Vec<_>>());
                    dict.set_item(field.name(), cells)?;
                }
                DataType::Int64 => {
                    let cells = any.downcast_ref::<Int64Array>().map(|cells| cells.iter().collect::<Vec<_>>());
                    dict.set_item(field.name(), cells)?;
                }
                DataType::Float64 => {
                    let cells = any.downcast_ref::<Float64Array>().map(|cells| cells.iter().collect::<Vec<_>>());
                    dict.set_item(field.name(), cells)?;
                }
                _ => {
                    let cells = any.downcast_ref::<StringArray>().map(|cells| cells.iter().collect::<Vec<_>>());
                    dict.set_item(field.name(), cells)?;
                }
            }
        }
        Ok(dict)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.0.schema().as_ref()).map_err(error::failed)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // Whoever wants other types converts what he gets: the interface lets a producer ignore the wish.
        drop(requested_schema);
        let batches = [Ok::<_, ArrowError>(self.0.clone())];
        let reader = RecordBatchIterator::new(batches, self.0.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
    }
}
