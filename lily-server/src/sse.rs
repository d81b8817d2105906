//! Server-sent events: frames, and the channel that carries them to a client.
//!
//! Frames wait in the channel without bound: a client that reads slowly must not hold a sequence's memory, and the token limit bounds what
//! waits. With a client that goes away ends the task that writes its frames, and with that its generation.
//!
//! A token takes this way while the engine computes the next one, often on the same processor: nothing here is set up anew for each frame.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};

/// What goes over the wire: an event or a comment, with the empty line that ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(Vec<u8>);

impl Frame {
    /// An event without a name. JSON text has no line breaks, so one `data:` line holds it.
    pub fn data(value: &impl Serialize) -> Self {
        Self::with(String::from("data: "), value)
    }

    /// An event with a name.
    pub fn event(name: &str, value: &impl Serialize) -> Self {
        Self::with(format!("event: {name}\ndata: "), value)
    }

    fn with(start: String, value: &impl Serialize) -> Self {
        let mut text = start.into_bytes();
        // Writing to memory cannot fail, and what is sent has no keys but strings.
        let _ = serde_json::to_writer(&mut text, value);
        text.extend_from_slice(b"\n\n");
        Self(text)
    }

    /// The end of OpenAI's streams.
    pub fn done() -> Self {
        Self(b"data: [DONE]\n\n".to_vec())
    }

    /// A comment that tells how much of the prompt has been read; clients ignore it, people and proxies see that the server works.
    pub fn progress(done: usize, total: usize) -> Self {
        Self(format!(": prefill {done}/{total}\n\n").into_bytes())
    }
}

/// Where a reply's task puts its frames.
#[derive(Debug)]
pub struct FrameSender(mpsc::UnboundedSender<Frame>);

impl FrameSender {
    /// Sends a frame. Where the client has gone the frame is dropped, as the task that calls this is at its next wait.
    pub fn send(&self, frame: Frame) {
        let _ = self.0.send(frame);
    }
}

/// The response that streams the frames that the task `write` sends, and ends when the task does; after `keep_alive` of silence it says
/// that it lives.
pub fn respond<F>(keep_alive: Duration, write: impl FnOnce(FrameSender) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, frames) = mpsc::unbounded_channel();
    let stream = Frames {
        frames,
        keep_alive,
        last: Instant::now(),
        silence: Box::pin(tokio::time::sleep(keep_alive)),
        writer: tokio::spawn(write(FrameSender(sender))).abort_handle(),
    };
    let mut response = Body::from_stream(stream).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx, which is often in between, not to hold frames back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The client's end.
struct Frames {
    frames: mpsc::UnboundedReceiver<Frame>,
    keep_alive: Duration,
    /// When the last frame left.
    last: Instant,
    /// Runs out `keep_alive` after the last frame, or earlier: it is not set anew for each.
    silence: Pin<Box<Sleep>>,
    writer: AbortHandle,
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

impl Stream for Frames {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.frames.poll_recv(context) {
            Poll::Ready(Some(Frame(mut text))) => {
                // What has piled up goes in one write.
                while let Ok(Frame(next)) = self.frames.try_recv() {
                    text.extend_from_slice(&next);
                }
                self.last = Instant::now();
                return Poll::Ready(Some(Ok(Bytes::from(text))));
            }
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {}
        }
        while self.silence.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let silent = now >= self.last + self.keep_alive;
            if silent {
                self.last = now;
            }
            let until = self.last + self.keep_alive;
            self.silence.as_mut().reset(until);
            if silent {
                return Poll::Ready(Some(Ok(Bytes::from_static(b": keep-alive\n\n"))));
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use serde_json::json;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn frames_arrive_in_order_and_silence_is_filled() {
        let (go, wait) = oneshot::channel::<()>();
        let response = respond(Duration::from_millis(20), |sender| async move {
            sender.send(Frame::data(&json!({"a": "x\ny"})));
            sender.send(Frame::progress(1, 2));
            let _ = wait.await;
            sender.send(Frame::done());
        });
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
        let mut body = response.into_body().into_data_stream();
        let first = body.next().await.unwrap().unwrap();
        assert_eq!(first, "data: {\"a\":\"x\\ny\"}\n\n: prefill 1/2\n\n");
        for _ in 0..2 {
            assert_eq!(body.next().await.unwrap().unwrap(), ": keep-alive\n\n");
        }
        go.send(()).unwrap();
        assert_eq!(body.next().await.unwrap().unwrap(), "data: [DONE]\n\n");
        assert!(body.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_frame() {
        let started = Instant::now();
        let response = respond(Duration::from_secs(10), |sender| async move {
            tokio::time::sleep(Duration::from_secs(7)).await;
            sender.send(Frame::done());
            std::future::pending::<()>().await;
        });
        let mut body = response.into_body().into_data_stream();
        assert_eq!(body.next().await.unwrap().unwrap(), "data: [DONE]\n\n");
        assert_eq!(body.next().await.unwrap().unwrap(), ": keep-alive\n\n");
        assert_eq!(started.elapsed().as_secs(), 17);
    }

    #[tokio::test]
    async fn with_the_client_goes_the_task_that_writes() {
        let (held, dropped) = oneshot::channel::<()>();
        drop(respond(Duration::from_secs(60), |_sender| async move {
            let _held = held;
            std::future::pending::<()>().await;
        }));
        assert!(dropped.await.is_err());
    }
}
