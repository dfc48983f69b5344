//! Errors as the exceptions of `remora/_errors.py`.

use pyo3::prelude::*;
use remora::Error;
use remora::store::StoreError;

/// An exception of this class.
pub fn exception(class: &str, message: &str) -> PyErr {
    Python::attach(|py| {
        let made = py.import("remora._errors").and_then(|errors| errors.getattr(class)?.call1((message,)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

/// For arguments that make no sense.
pub fn invalid(message: impl std::fmt::Display) -> PyErr {
    exception("InvalidArgument", &message.to_string())
}

/// What nobody else names.
pub fn failed(message: impl std::fmt::Display) -> PyErr {
    exception("RemoraError", &message.to_string())
}

/// An error of a node or a client.
pub fn of(error: Error) -> PyErr {
    let class = match &error {
        Error::Unreachable(_)
        | Error::Refused { .. }
        | Error::Lost { .. }
        | Error::Path { .. }
        | Error::SameAddress(_)
        | Error::Link { .. }
        | Error::Connect(_)
        | Error::Cm(_)
        | Error::Closed => "ConnectionFailed",
        Error::TimedOut { .. } => "CallTimedOut",
        Error::Kernel { .. } | Error::Reply { .. } => "KernelFailed",
        Error::Argument(_) | Error::Placement(_) | Error::Register(_) => "InvalidArgument",
        _ => "RemoraError",
    };
    exception(class, &error.to_string())
}

/// An error of the replicated store.
pub fn of_store(error: StoreError) -> PyErr {
    match error {
        StoreError::Refused(_) => exception("StoreRefused", &error.to_string()),
        StoreError::Unknown => exception("OutcomeUnknown", &error.to_string()),
        StoreError::Connection(error) => of(error),
        other => failed(other),
    }
}
