//! How far HyperLogLog's estimates are off, for every precision and 10^2 to 10^8 distinct values, beside the standard
//! error that theory has for one estimate (1.04 / sqrt(registers), Flajolet et al. 2007). Fails if one is over four
//! times that.
//!
//! `cargo run --release -p remora-kernel --example hll_error`

use remora_kernel::hll::{MAX_LG_K, MIN_LG_K, Sketch};

/// Powers of ten of values.
const POWERS: std::ops::RangeInclusive<u32> = 2..=8;
/// Values that are sketched at a time.
const RUN: u64 = 100_000;

fn main() -> std::process::ExitCode {
    println!("error of the estimate, % (times the standard error)");
    print!("registers");
    POWERS.for_each(|power| print!("{:>14}", format!("10^{power}")));
    println!();
    let mut worst = 0.0f64;
    for lg_k in MIN_LG_K..=MAX_LG_K {
        let mut sketch = Sketch::new(lg_k).expect("a precision that there is");
        let theory = 1.04 / f64::from(1u32 << lg_k).sqrt();
        print!("{:>9}", format!("2^{lg_k}"));
        let mut sketched = 0;
        for values in POWERS.map(|power| 10u64.pow(power)) {
            while sketched < values {
                let next = values.min(sketched + RUN);
                // Distinct: an odd factor maps numbers one to one, and the sketch hashes them.
                let value = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
                let run: Vec<[u8; 8]> = (sketched..next).map(value).collect();
                sketch.insert_all(run.as_flattened());
                sketched = next;
            }
            let error = (sketch.estimate() / values as f64 - 1.0).abs();
            worst = worst.max(error / theory);
            print!("{:>14}", format!("{:.3} ({:.2})", 100.0 * error, error / theory));
        }
        println!();
    }
    println!("at most {worst:.2} times the standard error");
    std::process::ExitCode::from(u8::from(worst > 4.0))
}
