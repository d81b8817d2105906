//! `POST /v1/messages`: Anthropic's API.

use crate::common::Server;
use axum::http::StatusCode;
use serde_json::{Value, json};

fn tools() -> Value {
    json!([{"name": "weather", "input_schema": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"},
    }}}])
}

/// Puts the events of a stream together, as Anthropic's own clients do.
fn accumulated(events: &[(String, Value)]) -> Value {
    assert_eq!(events[0].0, "message_start");
    let mut message = events[0].1["message"].clone();
    let mut json = String::new();
    for (name, data) in &events[1..] {
        assert_eq!(data["type"], *name);
        let index = data["index"].as_u64().unwrap_or(0) as usize;
        match name.as_str() {
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(data["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &data["delta"]);
                match delta["type"].as_str().unwrap() {
                    "input_json_delta" => json.push_str(delta["partial_json"].as_str().unwrap()),
                    kind => {
                        let field = kind.strip_suffix("_delta").unwrap();
                        let text = block[field].as_str().unwrap().to_owned() + delta[field].as_str().unwrap();
                        block[field] = text.into();
                    }
                }
            }
            "content_block_stop" if !json.is_empty() => {
                message["content"][index]["input"] = serde_json::from_str(&json).unwrap();
            }
            "content_block_stop" => {}
            "message_delta" => {
                for field in ["stop_reason", "stop_sequence"] {
                    message[field] = data["delta"][field].clone();
                }
                message["usage"] = data["usage"].clone();
            }
            "message_stop" => {}
            other => panic!("unexpected event {other}"),
        }
    }
    assert_eq!(events.last().unwrap().0, "message_stop");
    message
}

#[tokio::test]
async fn thoughts_text_and_calls_are_blocks_and_streams_agree() {
    let reply = "I see.</think>\n\nLet me look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n\
                 <parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n</function>\n</tool_call>";
    let body = json!({
        "model": "mini", "max_tokens": 400, "temperature": 0, "tools": tools(),
        "thinking": {"type": "enabled", "budget_tokens": 300},
        "messages": [{"role": "user", "content": "weather?"}],
    });
    let server = Server::new();
    server.say(reply);
    let whole = server.post("/v1/messages", body.clone()).await;
    assert_eq!(whole.status, StatusCode::OK, "{}", whole.text);
    let mut whole = whole.json();
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("tool_use"))
    );
    let content = whole["content"].as_array().unwrap();
    assert_eq!(
        content[0],
        json!({"type": "thinking", "thinking": "I see.", "signature": ""})
    );
    assert_eq!(content[1], json!({"type": "text", "text": "Let me look."}));
    assert_eq!(content[2]["input"], json!({"city": "Rome", "days": 2}));
    assert_eq!(
        (&content[3]["type"], &content[3]["name"], &content[3]["input"]),
        (&json!("tool_use"), &json!("weather"), &json!({}))
    );

    let server = Server::new();
    let mut streaming = body;
    streaming["stream"] = true.into();
    server.say(reply);
    let mut streamed = accumulated(&server.post("/v1/messages", streaming).await.events());
    // Ids are random.
    for message in [&mut whole, &mut streamed] {
        message["id"] = Value::Null;
        for block in message["content"].as_array_mut().unwrap() {
            if block["type"] == "tool_use" {
                assert!(block["id"].as_str().unwrap().starts_with("call_"));
                block["id"] = Value::Null;
            }
        }
    }
    assert_eq!(whole, streamed);
}

#[tokio::test]
async fn without_being_asked_the_model_does_not_think() {
    let server = Server::new();
    server.say("Hi. STOP more");
    let body = json!({"max_tokens": 50, "temperature": 0, "stop_sequences": ["HALT", "STOP"], "messages": [{"role": "user", "content": "hi"}]});
    let reply = server.post("/v1/messages", body).await.json();
    assert!(server.last_prompt().ends_with("<think>\n\n</think>\n\n"));
    assert_eq!(reply["content"], json!([{"type": "text", "text": "Hi. "}]));
    assert_eq!(
        (&reply["stop_reason"], &reply["stop_sequence"]),
        (&json!("stop_sequence"), &json!("STOP"))
    );
}

#[tokio::test]
async fn tokens_are_counted_as_they_are_used() {
    let server = Server::new();
    let body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hi there"}]});
    let counted = server.post("/v1/messages/count_tokens", body.clone()).await.json();
    let usage = server.post("/v1/messages", body).await.json()["usage"].clone();
    assert_eq!(counted["input_tokens"], usage["input_tokens"]);
    assert_eq!(usage["cache_read_input_tokens"], 0);
}

#[tokio::test]
async fn errors_have_anthropics_shape() {
    let server = Server::new();
    for (body, status, kind) in [
        (json!({"messages": []}), 400, "invalid_request_error"),
        (
            json!({"messages": [{"role": "user", "content": "a"}]}),
            400,
            "invalid_request_error",
        ),
        (
            json!({"model": "claude", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}),
            404,
            "not_found_error",
        ),
    ] {
        let answer = server.post("/v1/messages", body).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json()["type"], "error");
        assert_eq!(answer.error()["type"], kind, "{}", answer.text);
    }
    assert_eq!(
        server.get("/v1/messages").await.error()["type"],
        "invalid_request_error"
    );
    assert_eq!(server.get("/v1/messages/x").await.error()["type"], "not_found_error");
    server.stage.lock().unwrap().broken = true;
    server.say("some words");
    let body = json!({"stream": true, "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]});
    let events = server.post("/v1/messages", body).await.events();
    assert_eq!(events.last().unwrap().1["error"]["type"], "api_error");
}
