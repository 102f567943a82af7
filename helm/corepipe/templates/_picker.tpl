{{/* What an endpoint picker has to know of these pods: endpointpicker.yaml. */}}

{{/* "true" where events tell it each pod's prefixes: it wants a prompt's tokens then, and asks the render routes for
them without a key. */}}
{{- define "corepipe.pickerListens" -}}
{{- if and .Values.kvEvents.enabled (not .Values.apiKeys.existingSecret) }}true{{ end }}
{{- end }}

{{/* What is to be done with an InferencePool before it is of use. */}}
{{- define "corepipe.pickerNotes" -}}
{{- $picker := .Values.inferencePool.endpointPicker }}

{{ if $picker.config -}}
The endpoint picker {{ $picker.name }} is to read endpoint-picker.yaml of the ConfigMap {{ include "corepipe.fullname" . }}-endpoint-picker.
{{- else -}}
No configuration is written for the endpoint picker {{ $picker.name }} (inferencePool.endpointPicker.config): have it read metrics on port 8002.
{{- end }}
{{- if or .Values.apiKeys.existingSecret .Values.adminPort.enabled }}
Until it does the InferencePool misleads: the picker asks port 8000, gets no metrics, and takes every pod for saturated.
{{- else if include "corepipe.pickerListens" . }}
Until it does it knows nothing of what the pods tell of their caches.
{{- end }}
{{- if and .Values.kvEvents.enabled $picker.config (not (include "corepipe.pickerListens" .)) }}
It will not listen to the pods' KV events: to match them it asks a pod for tokens, and sends no key.
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.metricsPort.from) }}
The network policy lets in this namespace alone: if the picker is in another one, add that to metricsPort.from{{ if .Values.kvEvents.enabled }} and kvEvents.from{{ end }}.
{{- end }}
{{- end }}
