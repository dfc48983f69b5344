use remora_real::bench::*;
use std::time::Duration;
fn main() {
    let shm = std::env::args().nth(1).as_deref() == Some("shm");
    let b = Bench::new(if shm { BenchLink::Shm } else { BenchLink::Udp }).unwrap();
    println!("pingpong 64 {:?}", b.write_ping_pong(64, 20000));
    println!("read 64 {:?}", b.read_latency(64, 20000));
    println!("rate 64 {:?} M/s", b.write_rate(64, 1 << 20, Duration::from_secs(1)).map(|x| x / 1e6));
    println!("64K {:?} GB/s", b.write_rate(65536, 65536, Duration::from_secs(1)).map(|x| x * 65536. / 1e9));
    println!("64K span {:?} GB/s", b.write_rate(65536, 64 << 20, Duration::from_secs(1)).map(|x| x * 65536. / 1e9));
    let p = remora_real::probe::Probe::default();
    println!(
        "core {} ring {} udp {:?} stream {:?} memcpy {} {}",
        p.cache_line_ns(),
        p.ring_ns(),
        p.udp_ns(64),
        p.udp_stream(4112, 65536),
        p.memcpy_bytes_per_s(65536) / 1e9,
        p.memcpy_bytes_per_s(64 << 20) / 1e9
    );
}
