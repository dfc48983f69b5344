//! Replicated records: engines.
