//! Service id resolution: which queue pair of a peer takes datagrams for a service (IBTA volume 1, 12.11).

use std::collections::{BTreeMap, BTreeSet};

use remora_wire::cm::{SidrRep, SidrReq};

use super::grace::CALL_INTERVAL;
use super::handle::Origin;
use super::message;
use super::*;

/// The service that nobody has: asking for it is asking for a sign of life.
const NO_SERVICE: u64 = 0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Asked, with so many repetitions left.
    Asked(u8),
    /// A peer asks, and the user has not answered.
    Waiting,
    /// Answered; the answer is kept for a while to be said again.
    Answered,
}

struct Request {
    stage: Stage,
    route: CmTransmit,
    /// The peer's name for the request.
    remote_id: u32,
    transaction_id: u64,
    service_id: u64,
    bytes: Box<Bytes>,
    deadline: u64,
    /// Until when it is repeated although nobody listens.
    call_until: u64,
}

/// Requests of both sides.
#[derive(Default)]
pub(super) struct Services {
    requests: BTreeMap<ConnId, Request>,
    by_remote: BTreeMap<(IpAddr, u32), ConnId>,
    timers: BTreeSet<(u64, ConnId)>,
}

impl Services {
    pub fn contains(&self, id: ConnId) -> bool {
        self.requests.contains_key(&id)
    }

    pub fn len(&self) -> usize {
        self.requests.len()
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    fn insert(&mut self, id: ConnId, request: Request) {
        if !matches!(request.stage, Stage::Asked(_)) {
            self.by_remote.insert((request.route.to, request.remote_id), id);
        }
        self.timers.insert((request.deadline, id));
        self.requests.insert(id, request);
    }

    fn arm(&mut self, id: ConnId, deadline: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            self.timers.remove(&(request.deadline, id));
            request.deadline = deadline;
            self.timers.insert((deadline, id));
        }
    }

    fn remove(&mut self, id: ConnId) -> Option<Request> {
        let request = self.requests.remove(&id)?;
        self.timers.remove(&(request.deadline, id));
        if !matches!(request.stage, Stage::Asked(_)) {
            self.by_remote.remove(&(request.route.to, request.remote_id));
        }
        Some(request)
    }
}

impl Cm {
    /// Send a SIDR REQ: ask for the queue pair of a datagram service.
    ///
    /// Ends in [`CmEvent::ServiceResolved`] or [`CmEvent::Unreachable`].
    pub fn resolve_service(&mut self, now: u64, call: ConnectCall<'_>) -> Result<ConnId, CmError> {
        let call = check_call(call, SIDR_REQ_PRIVATE_DATA)?;
        if self.services.len() >= self.config.max_connections {
            return Err(CmError::TableFull(self.config.max_connections));
        }
        let (id, tid, route) = (self.fresh_id(), self.rng.next_u64(), self.route(&call));
        let bytes = message::sidr_req((id, tid), &call);
        let request = Request {
            stage: Stage::Asked(self.config.max_retries),
            route,
            remote_id: 0,
            transaction_id: tid,
            service_id: call.service_id,
            bytes: Box::new(bytes),
            deadline: now.saturating_add(self.config.response_timeout),
            call_until: now.saturating_add(self.config.call_grace),
        };
        self.services.insert(id, request);
        self.push_reply(route, bytes);
        Ok(id)
    }

    /// Send a SIDR REP: answer a [`CmEvent::ServiceRequest`] with a queue pair and its key, or, with another status
    /// than [`sidr_status::VALID`], refuse it.
    pub fn answer_service(
        &mut self,
        now: u64,
        id: ConnId,
        status: u8,
        (qpn, qkey): (u32, u32),
        private_data: &[u8],
    ) -> Result<(), CmError> {
        check_private_data(private_data, SIDR_REP_PRIVATE_DATA)?;
        let request = self.services.requests.get_mut(&id).ok_or(CmError::UnknownConn(id))?;
        if request.stage != Stage::Waiting {
            return Err(CmError::WrongState(id));
        }
        let asked = (request.remote_id, request.service_id);
        let bytes = message::sidr_rep(request.transaction_id, asked, (status, qpn, qkey), private_data);
        request.stage = Stage::Answered;
        *request.bytes = bytes;
        let route = request.route;
        self.services.arm(id, now.saturating_add(self.config.timewait));
        self.push_reply(route, bytes);
        Ok(())
    }

    /// Forget a request of either side. One that the user has not answered is refused.
    pub fn forget_service(&mut self, now: u64, id: ConnId) {
        match self.services.requests.get(&id).map(|request| request.stage) {
            Some(Stage::Asked(_)) => drop(self.services.remove(id)),
            Some(Stage::Waiting) => {
                let _ = self.answer_service(now, id, sidr_status::REJECTED, (0, 0), &[]);
            }
            Some(Stage::Answered) | None => {}
        }
    }

    pub(super) fn on_sidr_req(&mut self, origin: Origin, req: &SidrReq) {
        if let Some(id) = self.services.by_remote.get(&(origin.from, req.request_id)).copied() {
            return self.on_duplicate_sidr_req(origin, id, req);
        }
        if !self.listeners.contains_key(&req.service_id) && self.is_lately_gone(origin.now, req.service_id) {
            // The peer asks again.
            return;
        }
        let asked = (req.request_id, req.service_id);
        let called = message::read_addressed(&req.private_data, origin.from, origin.to);
        let (Some(&listener), Some((source_port, private_data))) = (self.listeners.get(&req.service_id), called) else {
            let instance = self.peers.instance().to_be_bytes();
            let data: &[u8] = if req.service_id == NO_SERVICE { &instance } else { &[] };
            return self.reply(origin, message::sidr_rep(origin.tid, asked, (sidr_status::UNSUPPORTED, 0, 0), data));
        };
        if self.events.len() >= 3 * self.config.max_connections {
            // The peer asks again.
            self.counters.refused += 1;
            return;
        }
        self.make_room_for_question(origin.from);
        let id = self.fresh_id();
        let request = Request {
            stage: Stage::Waiting,
            route: origin.back(),
            remote_id: req.request_id,
            transaction_id: origin.tid,
            service_id: req.service_id,
            bytes: Box::new([0; 256]),
            deadline: origin.now.saturating_add(self.patience()),
            call_until: 0,
        };
        self.services.insert(id, request);
        self.events.push_back(CmEvent::ServiceRequest {
            conn: id,
            listener,
            local_ip: origin.to,
            remote_ip: origin.from,
            source_port,
            private_data,
        });
    }

    /// Whoever asks gets a place. If all are taken, or one address has half of them, one of those is forgotten, whichever
    /// chance has it: its peer asks again. So questions from forged addresses keep nobody out.
    fn make_room_for_question(&mut self, from: IpAddr) {
        let (places, lot) = (self.config.max_half_open, self.rng.next_u32());
        let questions = &self.services.by_remote;
        let of_it = || questions.range((from, 0)..=(from, u32::MAX));
        let forgotten = if of_it().count() >= places.div_ceil(2) {
            questions.range((from, lot)..=(from, u32::MAX)).chain(of_it()).next().map(|(_, id)| *id)
        } else if questions.len() >= places {
            let others =
                |(id, request): (&ConnId, &Request)| (!matches!(request.stage, Stage::Asked(_))).then_some(*id);
            let requests = &self.services.requests;
            requests.range(ConnId(lot)..).chain(requests).find_map(others)
        } else {
            None
        };
        if let Some(id) = forgotten {
            self.counters.refused += 1;
            self.services.remove(id);
        }
    }

    fn on_duplicate_sidr_req(&mut self, origin: Origin, id: ConnId, req: &SidrReq) {
        let Some(request) = self.services.requests.get(&id) else { return };
        if request.stage == Stage::Answered && request.service_id == req.service_id {
            let bytes = *request.bytes;
            self.reply(origin, bytes);
        }
    }

    pub(super) fn on_sidr_rep(&mut self, origin: Origin, rep: &SidrRep) {
        if rep.service_id == NO_SERVICE {
            let instance = rep.private_data.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            return self.on_sign_of_life(origin, rep.request_id, instance);
        }
        let id = ConnId(rep.request_id);
        let asked = self.services.requests.get_mut(&id).and_then(|request| {
            let answers = (request.route, request.service_id) == (origin.back(), rep.service_id)
                && request.transaction_id == origin.tid;
            match &mut request.stage {
                Stage::Asked(retries) if answers => Some((retries, request.call_until)),
                _ => None,
            }
        });
        let Some((retries, call_until)) = asked else {
            self.counters.unexpected += 1;
            return;
        };
        if rep.status == sidr_status::UNSUPPORTED && origin.now < call_until {
            *retries = retries.saturating_add(1);
            return self.services.arm(id, origin.now.saturating_add(CALL_INTERVAL));
        }
        self.services.remove(id);
        let SidrRep { status, qpn, qkey, .. } = *rep;
        let private_data = rep.private_data.to_vec();
        self.events.push_back(CmEvent::ServiceResolved { conn: id, status, qpn, qkey, private_data });
    }

    pub(super) fn expire_services(&mut self, now: u64) {
        while let Some((_, id)) = self.services.timers.first().copied().filter(|(deadline, _)| *deadline <= now) {
            let Some(request) = self.services.requests.get_mut(&id) else { return };
            match &mut request.stage {
                Stage::Asked(retries @ 1..) => {
                    *retries -= 1;
                    let (route, bytes) = (request.route, *request.bytes);
                    self.services.arm(id, now.saturating_add(self.config.response_timeout.max(1)));
                    self.push_reply(route, bytes);
                }
                Stage::Asked(0) => {
                    self.services.remove(id);
                    self.events.push_back(CmEvent::Unreachable { conn: id });
                }
                Stage::Waiting | Stage::Answered => drop(self.services.remove(id)),
            }
        }
    }
}
