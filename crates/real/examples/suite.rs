fn main() {
    let r = remora_real::bench::run(&mut |w, _| eprintln!("{w}")).unwrap();
    println!("{:?}", r.core_to_core_ns);
    for x in &r.rows {
        println!(
            "{:40} {:10.2} {:5} | {:45} {:10.2} ratio {:.2} {:?}",
            x.what,
            x.value,
            x.unit,
            x.peer,
            x.peer_value,
            x.ratio,
            x.met()
        );
    }
    println!("{:?}", r.ucx);
}
