//! Sketches made by Apache DataSketches (the Python package, version 5): 0 to n - 1 as 64-bit integers into an HLL_8
//! sketch, `serialize_compact`. Named lg_k-n.

#![allow(clippy::disallowed_methods, reason = "a test reads files")]

use remora_kernel::hll::Sketch;

#[test]
fn sketches_are_those_of_datasketches() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/datasketches");
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let (lg_k, n) = path.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap();
        let theirs = std::fs::read(&path).unwrap();
        let mut ours = Sketch::new(lg_k.parse().unwrap()).unwrap();
        (0..n.parse().unwrap()).for_each(|value| ours.insert(value));
        assert_eq!(Sketch::from_image(&theirs).unwrap(), ours, "{path:?}");

        let image = ours.to_image();
        assert_eq!(image.len(), theirs.len(), "{path:?}");
        if image[0] == 10 {
            // All but the flag and the accumulator, which say in which order values came.
            assert_eq!(
                (&image[..5], &image[6..8], &image[16..]),
                (&theirs[..5], &theirs[6..8], &theirs[16..]),
                "{path:?}"
            );
        } else {
            // All but the order of coupons.
            let header = image.len().min(12);
            assert_eq!(image[..header.min(8)], theirs[..header.min(8)], "{path:?}");
        }
        seen += 1;
    }
    assert!(seen > 20);
}
