//! Listening, serving connections, and stopping in order.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower_http::add_extension::AddExtension;

use crate::app::{App, router};
use crate::body::Peer;
use crate::config::ServerConfig;

/// Why the server could not start.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Something else listens there.
    #[error("port {port} of {host} is in use, perhaps by another server; choose another with --port")]
    PortInUse {
        /// The address.
        host: String,
        /// The port.
        port: u16,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {host} port {port}: {source}")]
    Listen {
        /// The address.
        host: String,
        /// The port.
        port: u16,
        /// What the operating system said.
        source: io::Error,
    },
}

/// Binds the server's socket, so that the caller can tell the address before any request is served.
pub async fn bind(config: &ServerConfig) -> Result<TcpListener, ServeError> {
    let (host, port) = (config.host.clone(), config.port);
    TcpListener::bind((host.as_str(), port))
        .await
        .map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::PortInUse { host, port },
            _ => ServeError::Listen { host, port, source },
        })
}

/// Serves until `stop` completes; then takes no more connections, lets running requests finish within the grace time, and cancels the rest.
pub async fn serve(listener: TcpListener, app: Arc<App>, stop: impl Future<Output = ()>) {
    let service = router(Arc::clone(&app));
    let slots = Arc::new(Semaphore::new(app.config.max_connections));
    let (stopping, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        // Ended connections are collected on the way, so that the set does not grow.
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        if let Some((stream, peer, slot)) = accepted {
            let connection = connection(
                stream,
                AddExtension::new(service.clone(), Peer(peer.ip())),
                app.config.body_timeout,
                stopped.clone(),
            );
            connections.spawn(async move {
                connection.await;
                drop(slot);
            });
        }
    }
    drop(listener);
    app.engine.shut_down();
    // Nobody listens for the result where all connections have ended already.
    let _ = stopping.send(true);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(app.config.shutdown_grace, finished).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "the grace time is over; what still runs is cancelled"
        );
        connections.shutdown().await;
    }
}

type Slot = tokio::sync::OwnedSemaphorePermit;

/// The next connection, once there is room for one. `None` where accepting failed, which is no reason to stop.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, SocketAddr, Slot)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, slot)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            // Out of file descriptors, most likely: they come back when others close.
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn connection(
    stream: TcpStream,
    service: AddExtension<Router, Peer>,
    header_timeout: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    // Tokens go out one by one: without this, each would wait for the last one's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return log_end(result),
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    connection.as_mut().graceful_shutdown();
    log_end(connection.await);
}

/// Clients that go away are no fault of anyone's.
fn log_end(result: hyper::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
