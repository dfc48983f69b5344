//! Remora for Python. The package is `python/remora`; its stubs say what each of these takes and gives.

mod arrow;
mod asynchronous;
mod client;
mod error;
mod owned;
mod store;
mod study;

use pyo3::prelude::*;

/// What the package imports.
#[pymodule]
fn _remora(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Node>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::Region>()?;
    module.add_class::<client::Table>()?;
    module.add_class::<client::List>()?;
    module.add_class::<client::CheckedObject>()?;
    module.add_class::<client::Kernel>()?;
    module.add_class::<client::Pending>()?;
    module.add_class::<asynchronous::AsyncClient>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<store::LocalCluster>()?;
    module.add_class::<arrow::ArrowTable>()?;
    module.add_class::<study::Comparison>()?;
    module.add_class::<study::Reproduction>()?;
    module.add_function(wrap_pyfunction!(study::compare, module)?)?;
    module.add_function(wrap_pyfunction!(study::r#where, module)?)?;
    module.add_function(wrap_pyfunction!(study::reproduce, module)?)?;
    module.add_function(wrap_pyfunction!(study::platforms, module)?)?;
    Ok(())
}
