//! Real connections on the loopback interface: clients that are slow, go away or never finish, and a server that stops.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::Server;
use lily_engine::EngineOptions;
use lily_server::{ServeError, ServerConfig, bind, serve};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server that listens.
struct Listening {
    server: Server,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Listening {
    async fn start(config: ServerConfig) -> Self {
        let config = ServerConfig { port: 0, ..config };
        let listener = bind(&config).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::with(config, EngineOptions::default());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(listener, server.app.clone(), async {
            let _ = stopped.await;
        }));
        Self {
            server,
            address,
            stop,
            task,
        }
    }

    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    async fn chat(&self, stream: bool) -> TcpStream {
        let body =
            json!({"stream": stream, "temperature": 0, "messages": [{"role": "user", "content": "hi"}]}).to_string();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length";
        self.send(&format!("{head}: {}\r\n\r\n{body}", body.len())).await
    }

    async fn until_idle(&self) {
        let idle = async {
            while self.server.app.engine.status().running > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), idle)
            .await
            .expect("the generation goes on");
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(20), self.task)
            .await
            .expect("the server goes on")
            .unwrap();
    }
}

/// Reads until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes)).await;
    read.expect("the connection stays open").unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_port_in_use_is_told() {
    let listening = Listening::start(ServerConfig::default()).await;
    let config = ServerConfig {
        port: listening.address.port(),
        ..ServerConfig::default()
    };
    let error = bind(&config).await.unwrap_err();
    assert!(matches!(error, ServeError::PortInUse { .. }));
    assert!(error.to_string().contains("--port"), "{error}");
    let config = ServerConfig {
        host: "203.0.113.1".into(),
        port: 0,
        ..ServerConfig::default()
    };
    assert!(matches!(bind(&config).await, Err(ServeError::Listen { .. })));
    listening.stop().await;
}

#[tokio::test]
async fn a_connection_that_breaks_stops_its_generation() {
    for stream in [true, false] {
        let listening = Listening::start(ServerConfig::default()).await;
        listening.server.stage.lock().unwrap().pace = Duration::from_millis(5);
        listening.server.say(&"word ".repeat(3000));
        let connection = listening.chat(stream).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(listening.server.app.engine.status().running, 1);
        drop(connection);
        listening.until_idle().await;
        assert_eq!(listening.server.app.engine.status().cancelled, 1, "stream: {stream}");
        listening.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_reads_slowly_holds_nobody_up() {
    let listening = Listening::start(ServerConfig::default()).await;
    listening.server.say(&format!("x</think>{}", "slow ".repeat(1000)));
    let mut slow = listening.chat(true).await;
    let mut byte = [0];
    slow.read_exact(&mut byte).await.unwrap();
    // Its generation ends all the same, and others are served.
    listening.server.until_finished(1).await;
    listening.server.say("y</think>quick");
    let answer = listening.server.chat(json!({})).await;
    assert_eq!(answer.status, 200);
    let reply = rest_of_stream(slow).await;
    let deltas = reply
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
    let content: String = deltas
        .filter_map(|chunk: serde_json::Value| Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned()))
        .collect();
    assert_eq!(content.matches("slow").count(), 1000);
    listening.stop().await;
}

/// Reads a stream to its `[DONE]`.
async fn rest_of_stream(mut stream: TcpStream) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !text.contains("[DONE]") {
        let count = stream.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the stream broke off: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    text
}

#[tokio::test]
async fn requests_that_never_end_are_given_up() {
    let config = ServerConfig {
        body_timeout: Duration::from_millis(300),
        ..ServerConfig::default()
    };
    let listening = Listening::start(config).await;
    let began = Instant::now();
    let headers = listening
        .send("POST /v1/chat/completions HTTP/1.1\r\nHost: local")
        .await;
    assert!(rest(headers).await.is_empty());
    let body = listening
        .send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{")
        .await;
    let answer = rest(body).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(10));
    listening.stop().await;
}

#[tokio::test]
async fn too_large_a_body_is_refused_before_it_is_sent() {
    let listening = Listening::start(ServerConfig {
        max_body_bytes: 1000,
        ..ServerConfig::default()
    })
    .await;
    let request = listening
        .send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\nConnection: close\r\n\r\n")
        .await;
    let answer = rest(request).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("1000 bytes"));
    listening.stop().await;
}

#[tokio::test]
async fn what_is_no_http_gets_a_400() {
    let listening = Listening::start(ServerConfig::default()).await;
    let answer = rest(listening.send("hello\r\n\r\n").await).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    listening.stop().await;
}

#[tokio::test]
async fn stopping_lets_running_requests_finish() {
    let listening = Listening::start(ServerConfig::default()).await;
    listening.server.stage.lock().unwrap().pace = Duration::from_millis(3);
    listening.server.say(&format!("x</think>{}", "word ".repeat(50)));
    let request = listening.chat(false).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let address = listening.address;
    let (answer, ()) = tokio::join!(rest(request), listening.stop());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(answer.matches("word").count(), 50, "{answer}");
    assert!(TcpStream::connect(address).await.is_err(), "the server still listens");
}

#[tokio::test]
async fn after_the_grace_time_requests_are_cancelled() {
    let config = ServerConfig {
        shutdown_grace: Duration::from_millis(200),
        ..ServerConfig::default()
    };
    let listening = Listening::start(config).await;
    listening.server.stage.lock().unwrap().pace = Duration::from_millis(20);
    listening.server.say(&"word ".repeat(3000));
    let request = listening.chat(true).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let app = listening.server.app.clone();
    let began = Instant::now();
    let (_, ()) = tokio::join!(rest(request), listening.stop());
    assert!(began.elapsed() < Duration::from_secs(5));
    let cancelled = async {
        while app.engine.status().cancelled == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), cancelled)
        .await
        .expect("the generation goes on");
}

#[tokio::test]
async fn silence_is_filled_while_a_long_prompt_is_read() {
    let config = ServerConfig {
        keep_alive: Duration::from_millis(30),
        ..ServerConfig::default()
    };
    let listening = Listening::start(config).await;
    listening.server.stage.lock().unwrap().pace = Duration::from_millis(60);
    listening.server.say("x</think>y");
    let body = json!({"stream": true, "messages": [{"role": "user", "content": "word ".repeat(200)}]}).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length";
    let stream = listening.send(&format!("{head}: {}\r\n\r\n{body}", body.len())).await;
    let text = rest_of_stream(stream).await;
    assert!(text.contains(": keep-alive\n\n"), "{text}");
    assert!(text.contains(": prefill "), "{text}");
    listening.stop().await;
}

#[tokio::test]
async fn a_reply_that_takes_too_long_is_ended() {
    let config = ServerConfig {
        request_timeout: Some(Duration::from_millis(300)),
        ..ServerConfig::default()
    };
    let listening = Listening::start(config).await;
    listening.server.stage.lock().unwrap().pace = Duration::from_millis(10);
    listening.server.say(&"word ".repeat(3000));
    listening.server.say(&"word ".repeat(3000));
    let whole = listening.server.chat(json!({})).await;
    assert_eq!(
        (whole.status.as_u16(), &whole.json()["error"]["code"]),
        (504, &json!("timeout"))
    );
    listening.until_idle().await;
    let streamed = listening.server.chat(json!({"stream": true})).await;
    assert_eq!(streamed.status, 200);
    let text = &streamed.text;
    assert!(
        text.contains(r#""reasoning_content":"w"#) && text.contains(r#""code":"timeout""#),
        "{text}"
    );
    listening.until_idle().await;
    assert_eq!(listening.server.app.engine.status().cancelled, 2);
    listening.stop().await;
}
