//! The description of the routes is of these routes.

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;

use crate::common::Server;

#[tokio::test]
async fn every_route_is_described_and_every_description_has_its_route() {
    let server = Server::new();
    let answer = server.get("/openapi.json").await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["content-type"]),
        (200, &"application/json".parse().unwrap())
    );
    let description = answer.json();
    assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
    let paths = description["paths"].as_object().unwrap();
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            let uri = path.replace("{id}", &server.app.config.model_id);
            let request = Request::builder()
                .method(method.to_uppercase().as_str())
                .uri(uri)
                .header("host", "localhost")
                .body(Body::from("{}"))
                .unwrap();
            let status = server.send(request).await.status.as_u16();
            assert!(
                ![404, 405].contains(&status) && status < 500,
                "{method} {path}: {status}"
            );
        }
    }
    let source = include_str!("../../src/app.rs");
    let routes: Vec<&str> = source
        .split(".route(\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(routes.len(), paths.len());
    for route in routes {
        assert!(
            paths.contains_key(&route.replace("{*id}", "{id}")),
            "{route} is not described"
        );
    }
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }
    let description = Server::new().get("/openapi.json").await.json();
    let mut found = Vec::new();
    references(&description, &mut found);
    assert!(found.len() > 10);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(description.pointer(pointer).is_some(), "{reference}");
    }
}
