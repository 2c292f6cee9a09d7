//! Checks the API's responses against its OpenAPI document.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may unwrap

use serde_json::{Value, json};

/// Methods that an OpenAPI document may describe.
pub const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// An OpenAPI document and a validator for it.
pub struct ApiContract(pub Value);

impl ApiContract {
    /// Returns the method and the path template of every operation.
    pub fn operations(&self) -> Vec<(String, String)> {
        let paths = self.0["paths"].as_object().unwrap();
        let each = paths.iter().flat_map(|(path, item)| {
            let methods = METHODS.iter().filter(|method| item.get(**method).is_some());
            methods.map(move |method| ((*method).to_owned(), path.clone()))
        });
        each.collect()
    }

    /// Panics if the document does not describe this response to a request of `method` and `path`.
    #[track_caller]
    pub fn check(&self, method: &str, path: &str, status: u16, body: &Value) {
        let (template, item) = self.item(path).unwrap_or_else(|| panic!("{path}: undocumented"));
        let operation = &item[&method.to_ascii_lowercase()];
        assert!(operation.is_object(), "{method} {template} is not documented");
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{method} {template}: {status} is not documented: {body}");
        let schema = &response["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {template}: {status} has no schema");
        let mut root = schema.clone();
        root["components"] = self.0["components"].clone();
        let validator = jsonschema::draft202012::new(&root).expect("a schema");
        let errors: Vec<String> = validator.iter_errors(body).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{method} {path} {status}: {errors:?} in {body}");
    }

    /// Returns the path template that describes `path`.
    pub fn template(&self, path: &str) -> String {
        self.item(path).unwrap_or_else(|| panic!("{path}: undocumented")).0.clone()
    }

    fn item(&self, path: &str) -> Option<(&String, &Value)> {
        let path = path.split('?').next().unwrap();
        let paths = self.0["paths"].as_object().unwrap();
        let matches = |template: &str| {
            let (mut left, mut right) = (template.split('/'), path.split('/'));
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return true,
                    (Some(a), Some(b)) if a == b || a.starts_with('{') => {}
                    _ => return false,
                }
            }
        };
        // A path without parameters takes precedence over one with parameters.
        paths.get_key_value(path).or_else(|| paths.iter().find(|(template, _)| matches(template)))
    }
}

/// Asserts that the validator rejects a response whose fields have the wrong types.
pub fn assert_rejects_wrong_types(contract: &ApiContract) {
    let wrong = json!({ "error": 5, "hint": null });
    let result = std::panic::catch_unwind(|| {
        ApiContract(contract.0.clone()).check("get", "/api/v1/status", 404, &wrong);
    });
    assert!(result.is_err(), "the validator accepts a wrong response");
}
