//! Stock programs in a rack beside the same over the kernel's TCP: what `remora bench rack` has of them where they are
//! installed.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use remora_real::Error;

use super::BenchGoal;
use super::rack::{Program, RackPlan, RackSpin};
use crate::{bound, installed};

/// A program and one that asks it.
pub(super) struct Stock {
    pub what: &'static str,
    pub unit: &'static str,
    pub goal: BenchGoal,
    programs: [&'static str; 2],
    /// The words of who serves at a port, in a directory of its own.
    serve: fn(u16) -> String,
    /// Of who asks there, for so many seconds or so.
    ask: fn(u16, f64) -> String,
    /// The figure in what that prints.
    figure: fn(&str) -> Option<f64>,
}

const REDIS: [&str; 2] = ["redis-server", "redis-benchmark"];

/// Redis and nginx as SocksDirect (SIGCOMM 2019) measures them, and a stream.
pub(super) const ROWS: [Stock; 5] = [
    Stock {
        what: "redis-benchmark -c 1, GET",
        unit: "k/s",
        goal: BenchGoal::RatioAtLeast(4.0),
        programs: REDIS,
        serve: redis,
        ask: |port, seconds| gets(port, seconds * 40e3, "-c 1"),
        figure: get_rate,
    },
    Stock {
        what: "redis-benchmark -c 50, GET",
        unit: "k/s",
        goal: BenchGoal::RatioAtLeast(2.0),
        programs: REDIS,
        serve: redis,
        ask: |port, seconds| gets(port, seconds * 100e3, "-c 50"),
        figure: get_rate,
    },
    Stock {
        what: "redis-benchmark -c 50 -P 16, GET",
        unit: "k/s",
        goal: BenchGoal::RatioAtLeast(1.3),
        programs: REDIS,
        serve: redis,
        ask: |port, seconds| gets(port, seconds * 800e3, "-c 50 -P 16"),
        figure: get_rate,
    },
    Stock {
        what: "nginx, a small file, p50 of wrk",
        unit: "us",
        goal: BenchGoal::RatioAtMost(0.333),
        programs: ["nginx", "wrk"],
        serve: |_| "-p . -c conf".into(),
        ask: |port, seconds| format!("-t1 -c1 -d{}s --latency http://127.0.0.1:{port}/small", seconds.ceil()),
        figure: median_us,
    },
    Stock {
        what: "iperf3, one stream",
        unit: "Gbit/s",
        goal: BenchGoal::RatioAtLeast(2.5),
        programs: ["iperf3", "iperf3"],
        serve: |port| format!("-s -p {port}"),
        ask: |port, seconds| format!("-c 127.0.0.1 -p {port} -f m -t {}", seconds.ceil()),
        figure: received_gbits,
    },
];

fn redis(port: u16) -> String {
    // Nothing between two spaces is the empty word: it saves nothing.
    format!("--port {port} --bind 127.0.0.1 --save  --appendonly no")
}

fn gets(port: u16, count: f64, more: &str) -> String {
    format!("-p {port} -t set,get --csv -n {count:.0} {more}")
}

/// Thousands a second.
fn get_rate(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("\"GET\","))?;
    line.split(',').nth(1)?.trim_matches('"').parse::<f64>().ok().map(|rate| rate / 1e3)
}

fn median_us(said: &str) -> Option<f64> {
    let line = said.lines().map(str::trim).find(|line| line.starts_with("50%"))?;
    let time = line.split_whitespace().nth(1)?;
    let (digits, unit) = time.split_at(time.find(|c: char| c.is_alphabetic())?);
    let per = [("us", 1.0), ("ms", 1e3), ("s", 1e6)].into_iter().find(|(name, _)| *name == unit)?.1;
    digits.parse::<f64>().ok().map(|time| time * per)
}

fn received_gbits(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.trim_end().ends_with("receiver"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let unit = words.iter().position(|word| *word == "Mbits/sec")?;
    words.get(unit.checked_sub(1)?)?.parse::<f64>().ok().map(|rate| rate / 1e3)
}

/// How long a program may take to serve.
const START: Duration = Duration::from_secs(10);

impl Stock {
    /// The program that is not installed.
    pub(super) fn missing(&self) -> Option<&'static str> {
        self.programs.into_iter().find(|program| installed(program).is_none())
    }

    /// Its figure: in the rack, or over the kernel's TCP.
    pub(super) fn figure(&self, plan: &RackPlan, rack: Option<RackSpin>) -> Result<f64, Error> {
        let run = || {
            let [server, client] = self.programs.map(|program| installed(program).unwrap_or_else(|| program.into()));
            let directory = tempfile::tempdir()?;
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            fs::write(directory.path().join("conf"), nginx_conf(port))?;
            fs::write(directory.path().join("small"), "small\n")?;
            let mut command = plan.command(rack, &server, bound);
            command.args((self.serve)(port).split(' ')).current_dir(directory.path());
            let serving = Program::start_silent(command)?;
            let end = Instant::now() + START;
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
                if Instant::now() > end {
                    return Err(io::Error::other(format!("{} does not serve", self.programs[0])));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut command = plan.command(rack, &client, |program| Command::new(program));
            command.args((self.ask)(port, plan.time.as_secs_f64()).split(' '));
            // Ctrl-C is for this process, which waits for the figure.
            let output = command.stdin(Stdio::null()).process_group(0).output()?;
            drop(serving);
            let said = String::from_utf8_lossy(&output.stdout);
            let why = || {
                let error = String::from_utf8_lossy(&output.stderr);
                let last = said.lines().chain(error.lines()).last().unwrap_or("nothing");
                io::Error::other(format!("{} says {last:?}", self.programs[1]))
            };
            (self.figure)(&said).ok_or_else(why)
        };
        run().map_err(|source| Error::System { what: self.what, source })
    }
}

/// One worker, which is this user's: others are not of its rack.
fn nginx_conf(port: u16) -> String {
    let user = if rustix::process::geteuid().is_root() { "user root; " } else { "" };
    let temporary: String =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path {name}; ")).concat();
    format!(
        "{user}worker_processes 1; daemon off; pid pid; error_log error; events {{}} http {{ access_log off; {temporary}\
         server {{ listen 127.0.0.1:{port}; root .; keepalive_requests 100000000; }} }}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_programs_print() {
        let redis = "\"test\",\"rps\",\"avg\"\n\"SET\",\"1.00\",\"0\"\n\"GET\",\"43859.65\",\"0.020\"\n";
        assert_eq!(get_rate(redis), Some(43.85965));
        assert_eq!(median_us("  Latency Distribution\n     50%   25.50us\n     75%    1.00ms\n"), Some(25.5));
        assert_eq!(median_us("     50%   1.50ms\n"), Some(1500.0));
        let iperf = "[  5]   0.00-1.00   sec  5.03 GBytes  43211 Mbits/sec    0             sender\n\
                     [  5]   0.00-1.00   sec  5.03 GBytes  43199 Mbits/sec                  receiver\n";
        assert_eq!(received_gbits(iperf), Some(43.199));
        for figure in [get_rate, median_us, received_gbits] {
            assert_eq!(figure("it failed\n"), None);
        }
    }
}
