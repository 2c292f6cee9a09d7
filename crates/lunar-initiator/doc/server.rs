// Hidden part of the documentation's examples: a target with one disk in memory, so that they run.
fn serve() -> (lunar_target::Server, String) {
    use std::sync::Arc;
    const NAME: &str = "iqn.2026-11.org.example:disk";
    let memory = lunar_block::MemoryDevice::new(8 << 20, 512, 4096).unwrap();
    let unit = lunar_target::DiskUnitOptions::new(uuid::Uuid::from_u128(1), Arc::new(memory));
    let unit = lunar_target::DiskUnit::open(unit).unwrap();
    let access = lunar_target::Access::default();
    let server = lunar_target::Server::start(lunar_target::ServerOptions {
        portals: vec![lunar_target::Portal::new("127.0.0.1:0".parse().unwrap())],
        targets: vec![lunar_target::TargetOptions {
            name: NAME.to_owned(),
            alias: None,
            portal_group: 1,
            access,
            administer: None,
            chap: Vec::new(),
            offer: Default::default(),
            redirect: None,
            initiator_limits: Vec::new(),
            luns: vec![lunar_target::LunOptions::new(0, unit)],
        }],
        discovery_chap: None,
        cores: 1,
        latency_mode: false,
        limits: lunar_target::Limits::default(),
        buffers: lunar_block::BufferPool::default(),
        relays: None,
    });
    let server = server.unwrap();
    let url = format!("iscsi://{}/{NAME}/0", server.addresses()[0]);
    (server, url)
}
