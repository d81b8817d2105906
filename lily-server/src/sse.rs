//! Server-sent events: frames, and the channel that carries them to a client.
//!
//! Frames wait in the channel without bound: a client that reads slowly must not hold a sequence's memory, and the token limit bounds what
//! waits. A client that goes away closes the channel, which ends the task that writes it, and with that its generation.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::sync::mpsc;

/// What goes over the wire: an event or a comment, with the empty line that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(String);

impl Frame {
    /// An event without a name. JSON text has no line breaks, so one `data:` line holds it.
    pub fn data(value: Value) -> Self {
        Self(format!("data: {value}\n\n"))
    }

    /// An event with a name.
    pub fn event(name: &str, value: Value) -> Self {
        Self(format!("event: {name}\ndata: {value}\n\n"))
    }

    /// The end of OpenAI's streams.
    pub fn done() -> Self {
        Self("data: [DONE]\n\n".to_owned())
    }

    /// A comment that tells how much of the prompt has been read; clients ignore it, people and proxies see that the server works.
    pub fn progress(done: usize, total: usize) -> Self {
        Self(format!(": prefill {done}/{total}\n\n"))
    }
}

/// The client went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Where a reply's task puts its frames.
#[derive(Debug)]
pub struct FrameSender(mpsc::UnboundedSender<Frame>);

impl FrameSender {
    /// Sends a frame.
    pub fn send(&self, frame: Frame) -> Result<(), Closed> {
        self.0.send(frame).map_err(|_| Closed)
    }

    /// Waits for `future`, but not longer than the client does.
    pub async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Result<T, Closed> {
        tokio::select! {
            () = self.0.closed() => Err(Closed),
            value = future => Ok(value),
        }
    }
}

/// The client's end.
#[derive(Debug)]
pub struct Frames(mpsc::UnboundedReceiver<Frame>);

/// A channel for the frames of one reply.
pub fn channel() -> (FrameSender, Frames) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (FrameSender(sender), Frames(receiver))
}

impl Frames {
    /// The response that streams the frames; after `keep_alive` of silence it says that it lives.
    pub fn respond(self, keep_alive: Duration) -> Response {
        let stream = unfold(self.0, move |mut frames| async move {
            let bytes = match tokio::time::timeout(keep_alive, frames.recv()).await {
                Err(_) => Bytes::from_static(b": keep-alive\n\n"),
                Ok(None) => return None,
                Ok(Some(Frame(mut text))) => {
                    // What has piled up goes in one write.
                    while let Ok(Frame(next)) = frames.try_recv() {
                        text.push_str(&next);
                    }
                    Bytes::from(text)
                }
            };
            Some((Ok::<_, Infallible>(bytes), frames))
        });
        let mut response = Body::from_stream(stream).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Asks nginx, which is often in between, not to hold frames back.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use serde_json::json;

    #[tokio::test]
    async fn frames_arrive_in_order_and_silence_is_filled() {
        let (sender, frames) = channel();
        let response = frames.respond(Duration::from_millis(20));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let mut body = response.into_body().into_data_stream();
        sender.send(Frame::data(json!({"a": "x\ny"}))).unwrap();
        sender.send(Frame::progress(1, 2)).unwrap();
        let first = body.next().await.unwrap().unwrap();
        assert_eq!(first, "data: {\"a\":\"x\\ny\"}\n\n: prefill 1/2\n\n");
        assert_eq!(body.next().await.unwrap().unwrap(), ": keep-alive\n\n");
        sender.send(Frame::done()).unwrap();
        drop(sender);
        assert_eq!(body.next().await.unwrap().unwrap(), "data: [DONE]\n\n");
        assert!(body.next().await.is_none());
    }

    #[tokio::test]
    async fn a_client_that_goes_away_ends_the_wait() {
        let (sender, frames) = channel();
        drop(frames.respond(Duration::from_secs(60)));
        assert_eq!(sender.send(Frame::done()), Err(Closed));
        assert_eq!(sender.unless_closed(std::future::pending::<()>()).await, Err(Closed));
    }
}
