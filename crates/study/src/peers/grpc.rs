//! Unary gRPC calls over HTTP/2 connections that stay.
//!
//! Source: the gRPC over HTTP/2 protocol.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Uri};

/// Bytes of answers that may be under way on a stream and on a connection.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A connection; clones share it.
#[derive(Clone)]
pub struct Channel(SendRequest<Bytes>);

impl Channel {
    /// Connects. The connection lives in a task of the current `LocalSet`.
    pub async fn connect(address: SocketAddr) -> Result<Self, String> {
        let stream = tokio::net::TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
        let (send, connection) = builder.handshake(stream).await.map_err(|error| error.to_string())?;
        tokio::task::spawn_local(async move {
            // Who waits for an answer hears of its end.
            let _ = connection.await;
        });
        Ok(Self(send))
    }

    /// Sends the framed message of a request, and returns that of its answer.
    pub async fn call(&self, method: &Uri, message: Vec<u8>) -> Result<Vec<u8>, String> {
        let told = |error: h2::Error| error.to_string();
        let mut send = self.0.clone().ready().await.map_err(told)?;
        let request = Request::post(method.clone()).header("content-type", "application/grpc").header("te", "trailers");
        let request = request.body(()).map_err(|error| error.to_string())?;
        let (response, mut body) = send.send_request(request, false).map_err(told)?;
        body.send_data(message.into(), true).map_err(told)?;
        let response = response.await.map_err(told)?;
        if response.headers().contains_key("grpc-status") {
            status(response.headers())?;
        }
        let (mut body, mut answer) = (response.into_body(), Vec::new());
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(told)?;
            let _ = body.flow_control().release_capacity(chunk.len());
            answer.extend_from_slice(&chunk);
        }
        status(&body.trailers().await.map_err(told)?.unwrap_or_default())?;
        Ok(answer)
    }
}

/// Was it well?
fn status(headers: &HeaderMap) -> Result<(), String> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    match text("grpc-status") {
        Some(code) if code == "0" => Ok(()),
        Some(code) => Err(format!("status {code}: {}", text("grpc-message").unwrap_or_default())),
        None => Err("an answer without a status".into()),
    }
}
