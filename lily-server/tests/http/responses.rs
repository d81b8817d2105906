//! `POST /v1/responses`.

use crate::common::Server;
use serde_json::{Value, json};

fn tools() -> Value {
    json!([{"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}}])
}

const REPLY: &str = "I see.</think>\n\nLet me look.\n\n<tool_call>\n<function=time>\n</function>\n</tool_call>";

/// The output items without their random ids.
fn plain(response: &Value) -> Value {
    let mut output = response["output"].clone();
    for item in output.as_array_mut().unwrap() {
        let item = item.as_object_mut().unwrap();
        assert!(item.shift_remove("id").unwrap().is_string());
        if let Some(call) = item.shift_remove("call_id") {
            assert!(call.as_str().unwrap().starts_with("call_"));
        }
    }
    output
}

#[tokio::test]
async fn items_come_whole_and_streamed() {
    let body = json!({"input": "what time is it?", "tools": tools(), "temperature": 0});
    let server = Server::new();
    server.say(REPLY);
    let whole = server.post("/v1/responses", body.clone()).await;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let whole = whole.json();
    assert_eq!(
        (&whole["object"], &whole["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert_eq!(
        plain(&whole),
        json!([
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I see."}], "status": "completed"},
            {"type": "message", "role": "assistant", "status": "completed", "content": [
                {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []},
            ]},
            {"type": "function_call", "name": "time", "arguments": "{}", "status": "completed"},
        ])
    );
    let usage = &whole["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap())
    );

    let server = Server::new();
    server.say(REPLY);
    let mut streaming = body;
    streaming["stream"] = true.into();
    let events = server.post("/v1/responses", streaming).await.events();
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!(data["type"], *name);
        assert_eq!(data["sequence_number"], number);
    }
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    assert_eq!(*names.last().unwrap(), "response.completed");
    let last = &events.last().unwrap().1["response"];
    assert_eq!(plain(last), plain(&whole));
    // What the deltas say is what the items hold, and the ids agree.
    for (index, item) in last["output"].as_array().unwrap().iter().enumerate() {
        let of = |name: &str| -> String {
            events
                .iter()
                .filter(|(found, data)| found == name && data["output_index"] == index)
                .map(|(_, data)| {
                    assert_eq!(data["item_id"], item["id"]);
                    data["delta"].as_str().unwrap()
                })
                .collect()
        };
        match item["type"].as_str().unwrap() {
            "reasoning" => assert_eq!(
                of("response.reasoning_text.delta"),
                item["content"][0]["text"].as_str().unwrap()
            ),
            "message" => assert_eq!(
                of("response.output_text.delta"),
                item["content"][0]["text"].as_str().unwrap()
            ),
            _ => assert_eq!(
                of("response.function_call_arguments.delta"),
                item["arguments"].as_str().unwrap()
            ),
        }
        for name in ["response.output_item.added", "response.output_item.done"] {
            let event = events
                .iter()
                .find(|(found, data)| found == name && data["output_index"] == index)
                .unwrap();
            assert_eq!(event.1["item"]["id"], item["id"]);
        }
    }
}

#[tokio::test]
async fn a_reply_cut_short_is_incomplete() {
    let server = Server::new();
    server.say("one two three four five");
    let body = json!({"input": "hi", "max_output_tokens": 3, "temperature": 0, "reasoning": {"effort": "none"}});
    let response = server.post("/v1/responses", body).await.json();
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(response["output"][0]["status"], "incomplete");
}

#[tokio::test]
async fn logprobs_come_where_they_are_asked_for() {
    let server = Server::new();
    server.say("one two");
    let body = json!({
        "input": "hi", "temperature": 0, "reasoning": {"effort": "none"}, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    });
    let response = server.post("/v1/responses", body).await.json();
    let part = &response["output"][0]["content"][0];
    let text: String = part["logprobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["token"].as_str().unwrap())
        .collect();
    assert_eq!(text, part["text"].as_str().unwrap());
    assert_eq!(part["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn failures_end_the_stream_with_their_reason() {
    let server = Server::new();
    server.stage.lock().unwrap().broken = true;
    server.say("some words");
    let events = server
        .post("/v1/responses", json!({"input": "hi", "stream": true}))
        .await
        .events();
    let (name, data) = events.last().unwrap();
    assert_eq!(name, "response.failed");
    assert!(
        data["response"]["error"]["message"]
            .as_str()
            .unwrap()
            .contains("it burns")
    );
}
