//! A dynamic step commits what it can before its end: gradients need not live at once, old weights are read by nothing afterwards, and a
//! step that fails leaves no trace.

use compiler::{
    cost::DeviceProfile,
    dynamic,
    import::{self, trainable},
    train::{Optimizer, TrainOptions},
};
use onnx_models::ModelProto;
use onnx_protobuf::{
    AttributeProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto, tensor_shape_proto, type_proto,
};
