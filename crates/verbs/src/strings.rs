//! Names of the header's values, and rates as numbers.

use std::ffi::{CStr, c_char, c_int};

fn pick(table: &'static [&'static CStr], at: c_int, unknown: &'static CStr) -> *const c_char {
    usize::try_from(at).ok().and_then(|at| table.get(at)).unwrap_or(&unknown).as_ptr()
}

/// `ibv_wc_status_str`.
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"work request flushed error",
        c"memory bind operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    pick(&NAMES, status, c"unknown")
}

/// `ibv_wr_opcode_str`.
pub extern "C" fn ibv_wr_opcode_str(opcode: c_int) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"write",
        c"write with immediate data",
        c"send",
        c"send with immediate data",
        c"read",
        c"compare and swap",
        c"fetch and add",
        c"local invalidation",
        c"memory window binding",
        c"send with invalidation",
        c"segmented send",
        c"driver's own",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic write",
    ];
    pick(&NAMES, opcode, c"unknown")
}

/// `ibv_node_type_str`.
pub extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    pick(&NAMES, kind, c"unknown")
}

/// `ibv_port_state_str`.
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    pick(&NAMES, state, c"invalid state")
}

/// `ibv_event_type_str`.
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    pick(&NAMES, event, c"unknown")
}

/// Rates: code, multiple of 2.5 Gbit/s or 0 where it is none, Mbit/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `ibv_rate_to_mult`: -1 for what is no multiple.
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|(code, mult, _)| *code == rate && *mult > 0).map_or(-1, |(_, mult, _)| *mult)
}

/// `mult_to_ibv_rate`: 0, the rate of the port, for what is none.
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|(_, m, _)| *m == mult && mult > 0).map_or(0, |(code, ..)| *code)
}

/// `ibv_rate_to_mbps`: -1 for what is no rate.
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

/// `mbps_to_ibv_rate`: 0, the rate of the port, for what is none.
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|(.., m)| *m == mbps).map_or(0, |(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_there_and_back() {
        for (code, mult, mbps) in RATES {
            assert_eq!((ibv_rate_to_mbps(code), mbps_to_ibv_rate(mbps)), (mbps, code));
            if mult > 0 {
                assert_eq!((ibv_rate_to_mult(code), mult_to_ibv_rate(mult)), (mult, code));
            }
        }
        assert_eq!((ibv_rate_to_mult(99), mult_to_ibv_rate(7), ibv_rate_to_mbps(0)), (-1, 0, -1));
    }

    #[test]
    fn names_of_what_there_is_not() {
        for name in [ibv_wc_status_str, ibv_node_type_str, ibv_port_state_str, ibv_event_type_str] {
            for at in [-1, 1000] {
                // SAFETY: constants.
                let text = unsafe { CStr::from_ptr(name(at)) };
                assert!(["unknown", "invalid state"].contains(&text.to_str().unwrap()));
            }
        }
    }
}
