{{/* Names and labels. */}}
{{- define "corepipe.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* At most 52 characters: what is made of it gets endings. */}}
{{- define "corepipe.fullname" -}}
{{- $name := include "corepipe.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{ .Values.fullnameOverride | default $full | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "corepipe.serviceAccountName" -}}
{{- $own := ternary (include "corepipe.fullname" .) "default" .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default $own }}
{{- end }}

{{- define "corepipe.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* What chooses the server's pods, and no others. */}}
{{- define "corepipe.selectorLabels" -}}
app.kubernetes.io/name: {{ include "corepipe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end }}

{{- define "corepipe.commonLabels" -}}
app.kubernetes.io/part-of: corepipe
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "corepipe.labels" -}}
{{ include "corepipe.selectorLabels" . }}
{{ include "corepipe.commonLabels" . }}
{{- end }}

{{/* The ServiceMonitor's labels of this release's series. */}}
{{- define "corepipe.series" -}}
namespace="{{ .Release.Namespace }}",service="{{ include "corepipe.fullname" . }}"
{{- end }}

{{/* Whether there is a port of metrics without keys: "true", or nothing. */}}
{{- define "corepipe.metricsPort" -}}
{{- if or .Values.metricsPort.enabled .Values.inferencePool.enabled }}true{{ end }}
{{- end }}

{{/* The model's first name in the API. */}}
{{- define "corepipe.modelName" -}}
{{ .Values.servedModelNames | first | default .Values.model | default "smollm2-135m-instruct" }}
{{- end }}
