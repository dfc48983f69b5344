//! What processes, a rack's daemon, its gate and another rack say to each other: what parses is emitted to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use remora_rack::Record;
use remora_rack::frame::{GateAnswer, Question, Reply, Request};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(request) = Request::parse(bytes) {
        assert_eq!(request.emit().as_slice(), bytes);
    }
    if let Ok(reply) = Reply::parse(bytes) {
        assert_eq!(reply.emit().as_slice(), bytes);
    }
    if let Ok(question) = Question::parse(bytes) {
        assert_eq!(question.emit().as_slice(), bytes);
    }
    if let Ok(answer) = GateAnswer::parse(bytes) {
        assert_eq!(answer.emit().as_slice(), bytes);
    }
    if let Ok(Some((record, len))) = Record::parse(bytes) {
        let mut emitted = Vec::new();
        record.emit(&mut emitted);
        assert_eq!((emitted.len(), Record::parse(&emitted)), (len, Ok(Some((record, len)))));
    }
});
