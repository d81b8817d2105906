//! Structured output: the model may want something else, the reply fits all the same.

use crate::common::Server;
use serde_json::{Value, json};

fn schema() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
        "required": ["ok", "n"],
        "additionalProperties": false,
    }}})
}

fn content(answer: &Value) -> Value {
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

#[tokio::test]
async fn json_comes_after_the_thoughts_whatever_the_model_wants() {
    for thinking in [true, false] {
        let server = Server::new();
        server.say("Well, some thoughts.</think>\n\nI would rather chat, you know.");
        let answer = server
            .chat(json!({"response_format": schema(), "enable_thinking": thinking, "max_tokens": 300}))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        let object = content(&answer);
        assert!(
            object["ok"].is_boolean() && (object["n"] == 1 || object["n"] == 2),
            "{object}"
        );
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        if thinking {
            assert_eq!(
                answer["choices"][0]["message"]["reasoning_content"],
                "Well, some thoughts."
            );
        }
    }
}

#[tokio::test]
async fn a_required_call_is_made() {
    let tools = json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
            "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["days"]}}},
        {"type": "function", "function": {"name": "time"}},
    ]);
    let choices = [
        json!("required"),
        json!({"type": "function", "function": {"name": "weather"}}),
    ];
    for (number, choice) in choices.into_iter().enumerate() {
        let server = Server::new();
        server.say("Thoughts.</think>\n\nNo, I will not call anything.");
        let body = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 200});
        let answer = server.chat(body).await.json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{message}");
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        if number == 1 {
            assert_eq!(calls[0]["function"]["name"], "weather");
        }
        if calls[0]["function"]["name"] == "weather" {
            assert!((1..=9).contains(&arguments["days"].as_i64().unwrap()), "{arguments}");
        }
    }
}

#[tokio::test]
async fn regular_expressions_bind_too() {
    let server = Server::new();
    server.say("x</think>maybe");
    let format = json!({"type": "regex", "pattern": "yes|no"});
    let answer = server.chat(json!({"response_format": format})).await.json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(content == "yes" || content == "no", "{content:?}");
}

#[tokio::test]
async fn grammars_that_cannot_be_used_are_a_400() {
    let server = Server::new();
    for format in [
        json!({"type": "json_schema", "json_schema": {"schema": {"type": "no-such-type"}}}),
        json!({"type": "regex", "pattern": "("}),
        json!({"type": "lark", "grammar": "start: missing"}),
    ] {
        let answer = server.chat(json!({"response_format": format})).await;
        assert_eq!(answer.status, 400, "{format}: {}", answer.text);
        assert_eq!(answer.error()["param"], "response_format");
    }
}
