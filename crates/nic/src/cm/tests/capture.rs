//! Two exchanges between Linux hosts, replayed: what this side sends is what `rdma_cm` sent.

use std::net::Ipv4Addr;

use super::*;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 12));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 11));
const CLIENT_GUID: u64 = 0x5054_00ff_fe77_0012;
const SERVER_GUID: u64 = 0x5054_00ff_fe77_0011;
/// MADs begin with a header of 24 bytes; offsets below count from its end.
const BODY: usize = 24;

/// What differs between the captured exchanges.
struct Exchange {
    port: u16,
    transaction: u64,
    client_id: u32,
    server_id: u32,
    client: QpParams,
    server: QpParams,
    flow_label: u32,
    source_port: u16,
    closed_by_client: bool,
    closing_transaction: u64,
}

/// `rping`, which closes from the client, and the first connection of `ib_write_lat -R`, which closes from the server.
const EXCHANGES: [Exchange; 2] = [
    Exchange {
        port: 7174,
        transaction: 0x2_017f_f186,
        client_id: 0x86f1_7f01,
        server_id: 0x4799_0f73,
        client: queue_pair(0x30, 0x3a_bd4e, 1),
        server: queue_pair(0x27, 0x36_5e93, 1),
        flow_label: 0x9_b8a5,
        source_port: 0xd381,
        closed_by_client: true,
        closing_transaction: 0x2_017f_f186,
    },
    Exchange {
        port: 7175,
        transaction: 0x2_017f_f185,
        client_id: 0x85f1_7f01,
        server_id: 0x4199_0f73,
        client: queue_pair(0x35, 0xe8_4f2a, 0),
        server: queue_pair(0x2c, 0x9c_799f, 0),
        flow_label: 0x0_d16c,
        source_port: 0x89fb,
        closed_by_client: false,
        closing_transaction: 0x2_730f_9941,
    },
];

const fn queue_pair(qpn: u32, psn: u32, resources: u8) -> QpParams {
    QpParams {
        qpn,
        starting_psn: Psn::new(psn),
        path_mtu: 3,
        responder_resources: resources,
        initiator_depth: resources,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 19,
        srq: false,
    }
}

/// A captured MAD: attribute id and the bytes that are not zero, by offset.
fn captured(attribute: u8, transaction: u64, fields: &[(usize, &[u8])]) -> Bytes {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[0x01, 0x07, 0x02, 0x03]);
    mad[8..16].copy_from_slice(&transaction.to_be_bytes());
    mad[17] = attribute;
    for (offset, bytes) in fields {
        mad[BODY + offset..][..bytes.len()].copy_from_slice(bytes);
    }
    mad
}

/// A 24-bit field and the byte after it.
fn word(high: u32, low: u8) -> [u8; 4] {
    (high << 8 | u32::from(low)).to_be_bytes()
}

impl Exchange {
    fn req(&self) -> Bytes {
        let qp = &self.client;
        captured(
            0x10,
            self.transaction,
            &[
                (0, &self.client_id.to_be_bytes()),
                (8, &[0, 0, 0, 0, 0x01, 0x06]), // service: TCP port space
                (14, &self.port.to_be_bytes()),
                (16, &CLIENT_GUID.to_be_bytes()),
                (32, &word(qp.qpn, qp.responder_resources)),
                (39, &[qp.initiator_depth]),
                (43, &[0xa0]),                            // remote timeout 20, RC, no flow control
                (44, &word(qp.starting_psn.get(), 0xa7)), // local timeout 20, retries 7
                (48, &[0xff, 0xff]),                      // partition key
                (50, &[0x37, 0xf0]),                      // MTU 1024, RNR retry 7; 15 CM retries, no SRQ
                (52, &[0xff, 0xff, 0xff, 0xff]),          // LIDs
                (66, &[0xff, 0xff, 10, 77, 0, 12]),       // local GID
                (82, &[0xff, 0xff, 10, 77, 0, 11]),       // remote GID
                (88, &(self.flow_label << 12).to_be_bytes()),
                (93, &[0x40]),        // hop limit
                (95, &[0x98]),        // ACK timeout 19
                (140, &[0x00, 0x40]), // RDMA CM header: version 0, IPv4
                (142, &self.source_port.to_be_bytes()),
                (156, &[10, 77, 0, 12]),
                (172, &[10, 77, 0, 11]),
            ],
        )
    }

    fn rep(&self) -> Bytes {
        let qp = &self.server;
        captured(
            0x13,
            self.transaction,
            &[
                (0, &self.server_id.to_be_bytes()),
                (4, &self.client_id.to_be_bytes()),
                (12, &word(qp.qpn, 0)),
                (20, &word(qp.starting_psn.get(), 0)),
                (24, &[qp.responder_resources, qp.initiator_depth]),
                (26, &[0x78, 0xe0]), // ACK delay 15; RNR retry 7, no SRQ
                (28, &SERVER_GUID.to_be_bytes()),
            ],
        )
    }

    fn rtu(&self) -> Bytes {
        let ids = (self.client_id.to_be_bytes(), self.server_id.to_be_bytes());
        captured(0x14, self.transaction, &[(0, &ids.0), (4, &ids.1)])
    }

    /// The ids in the order that the closing side writes them, and the queue pair of the other.
    fn closing(&self) -> ([u8; 4], [u8; 4], u32) {
        let (client, server) = (self.client_id.to_be_bytes(), self.server_id.to_be_bytes());
        match self.closed_by_client {
            true => (client, server, self.server.qpn),
            false => (server, client, self.client.qpn),
        }
    }

    fn dreq(&self) -> Bytes {
        let (mine, other, qpn) = self.closing();
        captured(0x15, self.closing_transaction, &[(0, &mine), (4, &other), (8, &word(qpn, 0))])
    }

    fn drep(&self) -> Bytes {
        let (mine, other, _) = self.closing();
        captured(0x16, self.closing_transaction, &[(0, &other), (4, &mine)])
    }

    /// Closes as captured: either this side does, or it hears the other side do it.
    fn close(&self, cm: &mut Cm, conn: ConnId, as_client: bool) {
        let (here, there) = if as_client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        if self.closed_by_client == as_client {
            cm.disconnect(9, conn).unwrap();
            let dreq = sent(cm);
            assert_same(&dreq, &self.dreq(), &[OUR_ID, TRANSACTION]);
            let drep = answering(&dreq, renamed(self.drep(), 4, conn));
            cm.handle_mad(10, 0, there, here, &drep);
        } else {
            cm.handle_mad(9, 0, there, here, &renamed(self.dreq(), 4, conn));
            assert_same(&sent(cm), &self.drep(), &[OUR_ID]);
        }
        assert_eq!(cm.poll_event(), Some(CmEvent::Disconnected { conn }));
    }
}

type Field = (std::ops::Range<usize>, &'static str);

// What each side draws for itself.
const TRANSACTION: Field = (8..16, "transaction id");
const OUR_ID: Field = (BODY..BODY + 4, "local communication id");
const FLOW_LABEL: Field = (BODY + 88..BODY + 91, "flow label");
const SOURCE_PORT: Field = (BODY + 142..BODY + 144, "source port");

/// Asserts that a MAD is the captured one but for some fields.
fn assert_same(sent: &Bytes, captured: &Bytes, except: &[Field]) {
    for at in (0..256).filter(|at| !except.iter().any(|(range, _)| range.contains(at))) {
        let offset = at as isize - BODY as isize;
        assert_eq!(sent[at], captured[at], "byte {offset} of the body of MAD {:#x}", captured[17]);
    }
}

fn sent(cm: &mut Cm) -> Bytes {
    let mut out = [0; 256];
    cm.poll_transmit(&mut out).expect("a MAD to send");
    out
}

/// The MAD with this side's id at an offset, where the captured host's stood.
fn renamed(mut mad: Bytes, offset: usize, conn: ConnId) -> Bytes {
    mad[BODY + offset..][..4].copy_from_slice(&conn.0.to_be_bytes());
    mad
}

/// The captured MAD with the transaction id of what it answers here.
fn answering(question: &Bytes, mut mad: Bytes) -> Bytes {
    mad[TRANSACTION.0].copy_from_slice(&question[TRANSACTION.0]);
    mad
}

fn rdma_cm(ca_guid: u64) -> Cm {
    Cm::new(1, CmConfig { response_timeout: 4096 << 20, ca_guid, ..CmConfig::default() })
}

#[test]
fn the_active_side_speaks_as_rdma_cm() {
    for exchange in &EXCHANGES {
        let mut cm = rdma_cm(CLIENT_GUID);
        let service = service_id(exchange.port);
        let conn = cm.connect(0, CLIENT, SERVER, service, exchange.client, &[]).unwrap();
        let req = sent(&mut cm);
        assert_same(&req, &exchange.req(), &[TRANSACTION, OUR_ID, FLOW_LABEL, SOURCE_PORT]);

        cm.handle_mad(1, 0, SERVER, CLIENT, &answering(&req, renamed(exchange.rep(), 4, conn)));
        let (remote, private_data) = (exchange.server, vec![0; 196]);
        assert_eq!(cm.poll_event(), Some(CmEvent::Established { conn, remote, private_data }));
        assert_same(&sent(&mut cm), &answering(&req, exchange.rtu()), &[OUR_ID]);
        exchange.close(&mut cm, conn, true);
    }
}

#[test]
fn the_passive_side_speaks_as_rdma_cm() {
    for exchange in &EXCHANGES {
        let mut cm = rdma_cm(SERVER_GUID);
        let listener = cm.listen(service_id(exchange.port)).unwrap();
        cm.handle_mad(0, 0, CLIENT, SERVER, &exchange.req());
        let event = cm.poll_event();
        let Some(CmEvent::ConnectRequest { conn, .. }) = event else { panic!("{event:?}") };
        let request = CmEvent::ConnectRequest {
            conn,
            listener,
            remote: exchange.client,
            local_ip: SERVER,
            remote_ip: CLIENT,
            link: 0,
            source_port: exchange.source_port,
            private_data: vec![0; REQ_PRIVATE_DATA],
        };
        assert_eq!(event, Some(request));

        cm.accept(1, conn, exchange.server, &[]).unwrap();
        assert_same(&sent(&mut cm), &exchange.rep(), &[OUR_ID]);
        cm.handle_mad(2, 0, CLIENT, SERVER, &renamed(exchange.rtu(), 4, conn));
        assert!(matches!(cm.poll_event(), Some(CmEvent::Established { .. })));
        exchange.close(&mut cm, conn, false);
    }
}
