use remora_real::bench::*;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let b = Bench::new(if a[1] == "shm" { BenchLink::Shm } else { BenchLink::Udp }).unwrap();
    for _ in 0..3 {
        match a[2].as_str() {
            "pp" => println!("pingpong 64 {:?}", b.write_ping_pong(64, 100000)),
            "rd" => println!("read {:?}", b.read_latency(64, 100000)),
            "r64" => println!("rate 64 {:?} M/s", b.write_rate(64, 1 << 20, Duration::from_secs(1)).map(|x| x / 1e6)),
            _ => println!(
                "64K {:?} GB/s",
                b.write_rate(65536, 64 << 20, Duration::from_secs(1)).map(|x| x * 65536. / 1e9)
            ),
        }
    }
}
