//! The page of a comparison whose figures were kept: `cargo run -p remora-study --example page FILE > page.html`.

use remora_study::report::{Report, html};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("give the file that `remora compare --json` wrote")?;
    print!("{}", html(&serde_json::from_str::<Report>(&std::fs::read_to_string(file)?)?));
    Ok(())
}
