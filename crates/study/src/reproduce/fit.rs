//! Free parameters, fitted to what a paper's text says: within their ranges, and never to a figure.

use remora_model::platform::{Param, Platform};

/// A parameter that was free.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Fitted {
    /// Its paths.
    pub what: String,
    /// The value that it got, with its unit.
    pub value: String,
    /// What it may be.
    pub range: String,
    /// How firm it is without the fit, and who says so.
    pub source: String,
    /// What it was fitted to.
    pub to: String,
    /// Whether it stands at an end of its range, short of the target.
    pub at_end: bool,
}

/// Finds the common value of `paths` at which `measure` comes to `target`, between the ends of the first one's range.
/// `scale` makes what is measured linear in the value.
pub(crate) fn fit<E>(
    platform: &Platform,
    paths: &[&str],
    target: f64,
    scale: fn(f64) -> f64,
    measure: &dyn Fn(&Platform) -> Result<f64, E>,
    to: &str,
) -> Result<(f64, Fitted), E>
where
    E: From<remora_model::platform::PlatformError>,
{
    let Some(param) = paths.first().and_then(|path| platform.params.get(path)) else {
        return Ok((0.0, Fitted { what: paths.join(", "), ..nothing(to) }));
    };
    let at = |value: f64| -> Result<f64, E> {
        let values: Vec<(&str, f64)> = paths.iter().map(|&path| (path, value)).collect();
        measure(&platform.with(&values)?)
    };
    let (low, high) = param.range;
    let (at_low, at_high) = (at(low)?, at(high)?);
    let part = ((target - at_low) / (at_high - at_low)).clamp(0.0, 1.0);
    // Between the ends on the scale on which it is linear; `scale` is its own inverse.
    let value = scale(scale(low) + part * (scale(high) - scale(low)));
    Ok((value, described(param, paths, value, to, part <= 0.0 || part >= 1.0)))
}

/// Finds the value of a parameter at which `measure`, which rises with it but not in a straight line, comes to `target`:
/// by halving its range, to a thousandth of it.
pub(crate) fn fit_rising<E>(
    platform: &Platform,
    path: &str,
    target: f64,
    measure: &dyn Fn(&Platform) -> Result<f64, E>,
    to: &str,
) -> Result<(f64, Fitted), E>
where
    E: From<remora_model::platform::PlatformError>,
{
    let Some(param) = platform.params.get(path) else { return Ok((0.0, Fitted { what: path.into(), ..nothing(to) })) };
    let (mut low, mut high) = param.range;
    for _ in 0..10 {
        let middle = (low + high) / 2.0;
        match measure(&platform.with(&[(path, middle)])?)? < target {
            true => low = middle,
            false => high = middle,
        }
    }
    let at_end = low == param.range.0 || high == param.range.1;
    let value = (low + high) / 2.0;
    Ok((value, described(param, &[path], value, to, at_end)))
}

/// Fits a count: of all values in its range, the one for which `off` says that the platform is nearest to the target.
pub(crate) fn fit_count<E>(
    platform: &Platform,
    path: &str,
    off: &dyn Fn(&Platform) -> Result<f64, E>,
    to: &str,
) -> Result<(f64, Fitted), E>
where
    E: From<remora_model::platform::PlatformError>,
{
    let Some(param) = platform.params.get(path) else { return Ok((0.0, Fitted { what: path.into(), ..nothing(to) })) };
    let (low, high) = (param.range.0 as u64, param.range.1 as u64);
    let mut best = (f64::MAX, low);
    for value in low..=high {
        let off = off(&platform.with(&[(path, value as f64)])?)?;
        if off < best.0 {
            best = (off, value);
        }
    }
    Ok((best.1 as f64, described(param, &[path], best.1 as f64, to, false)))
}

fn described(param: &Param, paths: &[&str], value: f64, to: &str, at_end: bool) -> Fitted {
    let (low, high) = param.range;
    Fitted {
        what: paths.join(" = "),
        value: rounded(&param.text(value)),
        range: format!("{} to {}", param.text(low), param.text(high)),
        source: format!("{}: {}", param.status, param.source),
        to: to.into(),
        at_end,
    }
}

fn nothing(to: &str) -> Fitted {
    let empty = String::new;
    Fitted { what: empty(), value: empty(), range: empty(), source: empty(), to: to.into(), at_end: true }
}

/// `127.03 cycles` of `127.0312 cycles`.
fn rounded(text: &str) -> String {
    match text.split_once(' ') {
        Some((number, unit)) => match number.parse::<f64>() {
            Ok(number) if number.fract() == 0.0 => format!("{number:.0} {unit}"),
            Ok(number) => format!("{number:.3} {unit}"),
            Err(_) => text.into(),
        },
        None => text.into(),
    }
}
