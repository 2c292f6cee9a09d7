//! The OpenAPI document, generated from the routes.

use super::Document;
use super::problem::ProblemBody;
use super::shared::ApiState;
use axum::Json;
use axum::http::StatusCode;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Ref,
    RefOr, ResponseBuilder,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

const TOKEN: &str = "token";
const PROBLEM: &str = "ProblemBody";

/// Error responses that each request may get.
const PROBLEMS: [(StatusCode, &str); 11] = [
    (StatusCode::BAD_REQUEST, "The request cannot be parsed"),
    (StatusCode::UNAUTHORIZED, "The token is missing or wrong"),
    (StatusCode::FORBIDDEN, "The request comes from a web page, or is a change without a token"),
    (StatusCode::NOT_FOUND, "The resource does not exist"),
    (StatusCode::REQUEST_TIMEOUT, "The request body took too long"),
    (StatusCode::CONFLICT, "The request conflicts with the current state"),
    (StatusCode::PAYLOAD_TOO_LARGE, "The request body is too long"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "The request body is not declared as JSON"),
    (StatusCode::UNPROCESSABLE_ENTITY, "The request is invalid"),
    (StatusCode::INTERNAL_SERVER_ERROR, "An internal error; see the log of the server"),
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "The server is stopping and refuses changes; with Retry-After: too many long responses \
         are being sent",
    ),
];

/// The document without routes: its title, version and license.
pub(super) fn base_document() -> OpenApi {
    let license = LicenseBuilder::new().name("Apache-2.0").build();
    let info = InfoBuilder::new()
        .title("Lunar")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Sessions, targets and LUNs of a running `lunar serve` or `lunar target`.",
        ))
        .license(Some(license));
    OpenApiBuilder::new().info(info).build()
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(openapi))
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "document",
    responses((status = 200, description = "An OpenAPI 3.1 document", body = Object)))]
async fn openapi() -> Document {
    Json(super::document())
}

/// Adds the parts common to all routes: error responses and the token.
pub(super) fn finish(mut document: OpenApi) -> OpenApi {
    let components = document.components.take().unwrap_or_default();
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let problem = <ProblemBody as utoipa::PartialSchema>::schema();
    document.components = Some(
        ComponentsBuilder::from(components)
            .schema(PROBLEM, problem)
            .security_scheme(TOKEN, scheme)
            .build(),
    );
    document.security = Some(vec![
        SecurityRequirement::default(),
        SecurityRequirement::new::<_, [&str; 0], &str>(TOKEN, []),
    ]);
    for item in document.paths.paths.values_mut() {
        let operations =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        operations.into_iter().flatten().for_each(add_problems);
    }
    document
}

fn add_problems(operation: &mut Operation) {
    for (status, why) in PROBLEMS {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(PROBLEM))).build();
        let response =
            ResponseBuilder::new().description(why).content("application/json", content).build();
        let responses = &mut operation.responses.responses;
        responses.entry(status.as_u16().to_string()).or_insert(RefOr::T(response));
    }
}
