//! The modelled world: discrete events over hardware components described in platform files.

pub mod bench;
pub mod cluster;
pub mod component;
mod draw;
pub mod energy;
pub mod event;
pub mod platform;
pub mod rack_world;
pub mod resource;
pub mod ring_server;
pub mod time;
pub mod world;
